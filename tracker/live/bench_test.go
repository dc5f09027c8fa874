package live_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
)

// BenchmarkAllocBesideStuckClients shows that clients that take nothing cost an
// allocation nothing: compare the two.
func BenchmarkAllocBesideStuckClients(b *testing.B) {
	for _, clients := range []int{0, 64} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			device, err := sim.New(sim.Config{})
			require.NoError(b, err)
			tr, err := tracker.New(tracker.Config{Device: device, Report: io.Discard})
			require.NoError(b, err)
			defer tr.Close()
			h := live.Handler(tr)
			release, done := make(chan struct{}), make(chan struct{})
			for range clients {
				client := &stuck{make(http.Header), make(chan struct{}), release}
				go func() {
					h.ServeHTTP(client, httptest.NewRequest(http.MethodGet, "http://localhost/marks", nil))
					done <- struct{}{}
				}()
				<-client.writing
			}
			b.ReportAllocs()
			for b.Loop() {
				buf, err := tr.AllocBytes(alloc.MiB, tracker.Temporary)
				if err != nil {
					b.Fatal(err)
				}
				if err := buf.Free(); err != nil {
					b.Fatal(err)
				}
			}
			close(release)
			for range clients {
				<-done
			}
		})
	}
}
