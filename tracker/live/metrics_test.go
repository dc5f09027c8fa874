package live_test

import (
	"compress/gzip"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/prom"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// client answers as Prometheus's own client does, for sources with their labels.
func client(t *testing.T, cfg prom.Config, suspects bool, sources ...live.Source) http.Handler {
	t.Helper()
	registry := prometheus.NewRegistry()
	for _, s := range sources {
		into := prometheus.Registerer(registry)
		if len(sources) > 1 {
			its := s.LightSnapshot().Origin
			into = prometheus.WrapRegistererWith(prometheus.Labels{"program": its.Program, "pid": "7", "container": its.Container}, registry)
		}
		take := s.LightSnapshot
		if suspects {
			take = s.Snapshot
		}
		require.NoError(t, into.Register(prom.NewCollector(take, cfg)))
	}
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

func scraped(h http.Handler, query, accept string) (contentType, body string) {
	r := httptest.NewRequest(http.MethodGet, "http://localhost/metrics"+query, nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Header().Get("Content-Type"), w.Body.String()
}

// TestMetricsAreThoseOfPrometheusClient, byte for byte, in both formats, with any names.
func TestMetricsAreThoseOfPrometheusClient(t *testing.T) {
	const evil = "a \\ \"b\"\n\xff<c>,{d=\"e\"} 1\n# EOF\n"
	device, err := sim.New(sim.Config{Name: evil, Memory: 3 * alloc.GiB})
	require.NoError(t, err)
	odd := exporttest.New(t, tracker.Config{Device: device, Origin: snapshot.Origin{Program: "x\\y\n\"z\"", PID: 7}})
	_, err = odd.AllocBytes(1<<40/1000+1<<20, "own \"kind\"\\")
	require.NoError(t, err)
	_, err = odd.AllocBytes(1, tracker.Input)
	require.NoError(t, err)
	normal, leaky := trained(t), exporttest.Leaky(t)
	for _, accept := range []string{"", "application/openmetrics-text;version=1.0.0"} {
		for _, source := range []*tracker.MemTracker{normal, leaky, odd} {
			wantType, want := scraped(client(t, prom.Config{TopCallSites: 2}, true, source), "", accept)
			gotType, got := scraped(live.Handler(source), "?top=2&suspects=1", accept)
			assert.Equal(t, wantType, gotType)
			assert.Equal(t, want, got)
			assert.Greater(t, strings.Count(want, "\n"), 20)
		}
		both := live.Several(func() iter.Seq2[string, live.Source] {
			return func(yield func(string, live.Source) bool) {
				_ = yield("1", odd) && yield("2", outside{odd}) && yield("3", other{normal})
			}
		})
		_, want := scraped(client(t, prom.Config{TopCallSites: 2}, false, odd, other{normal}), "", accept)
		_, got := scraped(both, "?top=2", accept)
		assert.Equal(t, want, got, "of two sources with the same labels, the first")
	}
}

// other is a source of process 7, too.
type other struct{ *tracker.MemTracker }

func (o other) LightSnapshot() *snapshot.Snapshot {
	s := *o.MemTracker.LightSnapshot()
	s.Origin.PID = 7
	return &s
}

// TestTheFormatIsThatWhichTheClientPrefers, as Prometheus's own client has it.
func TestTheFormatIsThatWhichTheClientPrefers(t *testing.T) {
	source := trained(t)
	for _, accept := range []string{
		"", "*/*", "text/html", "text/plain", "text/plain;version=0.0.4", "text/plain;version=9", "application/openmetrics-text",
		"application/openmetrics-text;version=1.0.0", "application/openmetrics-text; version=0.0.1", "application/openmetrics-text;version=9",
		"text/plain;version=0.0.4;q=0.5,application/openmetrics-text;version=1.0.0;q=0.4",
		"application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
		"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
		";;;,q=x,application/openmetrics-text;version=1.0.0;q=x",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
	} {
		want, _ := scraped(client(t, prom.Config{}, false, source), "", accept)
		got, _ := scraped(live.Handler(source), "", accept)
		assert.Equal(t, want, got, accept)
	}
}

// TestHostileLabels: whatever a device and a program are called, a scrape is valid, and each label is one label.
func TestHostileLabels(t *testing.T) {
	const evil = "a \\ \"b\"\n\xff<c>,{d=\"e\"} 1\n# EOF\n"
	device, err := sim.New(sim.Config{Name: evil})
	require.NoError(t, err)
	odd := exporttest.New(t, tracker.Config{Device: device, Origin: snapshot.Origin{Program: evil, PID: 7, Container: evil}})
	both := live.Several(func() iter.Seq2[string, live.Source] {
		return func(yield func(string, live.Source) bool) { yield("1", odd) }
	})
	line := regexp.MustCompile("(?m)^gpumem_live_buffers.*Parameter.*$")
	for _, accept := range []string{"", "application/openmetrics-text;version=1.0.0"} {
		_, alone := scraped(live.Handler(odd), "", accept)
		_, several := scraped(both, "", accept)
		zero := "0"
		if accept != "" {
			zero = "0.0"
		}
		// A device's name is quoted if it is not printable, and both are escaped as the format has it.
		device := `device="\"a \\\\ \\\"b\\\"\\n�<c>,{d=\\\"e\\\"} 1\\n# EOF\\n\""`
		assert.Equal(t, []string{`gpumem_live_buffers{` + device + `,kind="Parameter",ordinal="0",uuid=""} ` + zero}, line.FindAllString(alone, -1))
		program := `="a \\ \"b\"\n�<c>,{d=\"e\"} 1\n# EOF\n"`
		assert.Equal(t, []string{`gpumem_live_buffers{container` + program + `,` + device + `,kind="Parameter",ordinal="0",pid="7",program` + program + `,uuid=""} ` + zero},
			line.FindAllString(several, -1))
		for _, all := range []string{alone, several} {
			for text := range strings.Lines(strings.TrimSuffix(all, "# EOF\n")) {
				assert.Regexp(t, `^(# (HELP|TYPE) gpumem_|gpumem_\w+\{)`, text)
			}
		}
	}
}

// counting is a source that counts its snapshots.
type counting struct {
	*tracker.MemTracker
	light, full int
}

func (c *counting) LightSnapshot() *snapshot.Snapshot {
	c.light++
	return c.MemTracker.LightSnapshot()
}

func (c *counting) Snapshot() *snapshot.Snapshot {
	c.full++
	return c.MemTracker.Snapshot()
}

// TestAScrapeIsOfOneInstant: all of its series are of one snapshot, which is a light one unless suspects are asked for.
func TestAScrapeIsOfOneInstant(t *testing.T) {
	source := &counting{MemTracker: trained(t)}
	h := live.Handler(source)
	for query, want := range map[string][2]int{"?top=3": {1, 0}, "?suspects=1": {0, 1}} {
		source.light, source.full = 0, 0
		_, body := scraped(h, query, "")
		assert.Contains(t, body, "gpumem_live_bytes{")
		assert.Equal(t, want, [2]int{source.light, source.full}, query)
	}
	source.light, source.full = 0, 0
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodHead, "http://localhost/metrics", nil))
	assert.Regexp(t, "^text/plain; version=0.0.4", w.Header().Get("Content-Type"))
	assert.Empty(t, w.Body.String())
	assert.Zero(t, source.light+source.full, "a HEAD needs no snapshot")
}

// TestOnlyTheTrackersMetricsAreServed, and none of the program's own registry.
func TestOnlyTheTrackersMetricsAreServed(t *testing.T) {
	_, body := scraped(live.Handler(trained(t)), "?top=3&suspects=1", "")
	for line := range strings.Lines(body) {
		assert.Regexp(t, `^(# (HELP|TYPE) )?gpumem_`, line)
	}
	families, err := prometheus.DefaultGatherer.Gather()
	require.NoError(t, err)
	for _, f := range families {
		assert.NotRegexp(t, "^gpumem_", f.GetName())
	}
}

func TestMetricsAreCompressed(t *testing.T) {
	h := live.Handler(trained(t))
	r := httptest.NewRequest(http.MethodGet, "http://localhost/metrics", nil)
	r.Header.Set("Accept-Encoding", "gzip")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	assert.Equal(t, "gzip", w.Header().Get("Content-Encoding"))
	unpacked, err := gzip.NewReader(w.Body)
	require.NoError(t, err)
	got, err := io.ReadAll(unpacked)
	require.NoError(t, err)
	_, want := scraped(h, "", "")
	assert.Equal(t, want, string(got))
}
