//go:build linux

package otlp

import (
	"bytes"
	"fmt"
	"net/http"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/pprof"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/prom"
)

// nowhere takes everything.
type nowhere struct{}

func (nowhere) RoundTrip(*http.Request) (*http.Response, error) {
	return reply(http.StatusOK, nil, nil)
}

// cpu reports the processor time of a benchmark: the machine may be busy with other things.
func cpu(b *testing.B) (end func()) {
	read := func() float64 {
		var u syscall.Rusage
		require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e6
	}
	before := read()
	return func() { b.ReportMetric((read()-before)/float64(b.N), "cpu-ms/op") }
}

// BenchmarkPush pushes 1 % of 100,000 call sites, beside writing all of them as pprof, and beside a scrape by Prometheus.
// Compare the processor times: the goal for the push is a fifth of pprof, for the scrape that of pprof.
func BenchmarkPush(b *testing.B) {
	const sites = 100_000
	m := manySites(sites, 24)
	b.Run("otlp=1%", func(b *testing.B) {
		p, err := Start(Config{Endpoint: "http://x", Interval: time.Hour, NoMetrics: true, transport: nowhere{}, getenv: noEnv}, m)
		require.NoError(b, err)
		require.NoError(b, p.Flush(b.Context()))
		runtime.GC()
		b.ReportAllocs()
		defer cpu(b)()
		for b.Loop() {
			m.change(100)
			require.NoError(b, p.Flush(b.Context()))
		}
	})
	b.Run("otlp=all", func(b *testing.B) {
		defer cpu(b)()
		for b.Loop() {
			p, err := Start(Config{Endpoint: "http://x", Interval: time.Hour, NoMetrics: true, transport: nowhere{}, getenv: noEnv}, m)
			require.NoError(b, err)
			require.NoError(b, p.Flush(b.Context()))
			require.NoError(b, p.Stop(b.Context()))
		}
	})
	b.Run("pprof", func(b *testing.B) {
		b.ReportAllocs()
		defer cpu(b)()
		for b.Loop() {
			require.NoError(b, pprof.WriteUsage(new(bytes.Buffer), export.FromSnapshot(m.LightSnapshot())))
		}
	})
	for _, top := range []int{0, 20, sites} {
		b.Run(fmt.Sprintf("prom/top=%d", top), func(b *testing.B) {
			registry := prometheus.NewPedanticRegistry()
			registry.MustRegister(prom.NewCollector(m.LightSnapshot, prom.Config{TopCallSites: top}))
			b.ReportAllocs()
			defer cpu(b)()
			for b.Loop() {
				_, err := registry.Gather()
				require.NoError(b, err)
			}
		})
	}
}
