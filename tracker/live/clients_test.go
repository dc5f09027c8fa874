package live_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
)

// TestEveryClientHasItsTime: a client that takes nothing is dropped, whatever it asked for.
func TestEveryClientHasItsTime(t *testing.T) {
	tr := trained(t)
	h := live.Handler(tr)
	for _, page := range []string{"", "profile", "profile?debug=1", "snapshot", "dump", "trace", "memory_viz.pickle", "report", "leaks", "lines", "levels", "marks", "metrics"} {
		client := &taker{ResponseRecorder: httptest.NewRecorder()}
		ctx, cancel := context.WithCancel(t.Context())
		if page == "marks" {
			cancel() // it does not end by itself
		}
		h.ServeHTTP(client, httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/"+page, nil))
		cancel()
		assert.NotZero(t, client.deadline, page)
	}
}

// TestWaitingProfilesHoldUpNobody: who waits for seconds to pass does no work.
func TestWaitingProfilesHoldUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := live.Handler(exporttest.New(t, tracker.Config{Clock: time.Now}))
		codes := make(chan int)
		for range 64 {
			go func() { codes <- get(t, h, "profile?seconds=60").Code }()
		}
		synctest.Wait()
		assert.Equal(t, http.StatusServiceUnavailable, get(t, h, "profile?seconds=60").Code, "there is a bound to them too")
		for _, page := range []string{"profile", "snapshot", "marks?after=1"} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/"+page, nil))
			cancel()
			assert.Equal(t, http.StatusOK, w.Code, page)
		}
		for range 64 {
			assert.Equal(t, http.StatusOK, <-codes)
		}
	})
}

func TestProfileOfSecondsIsTheChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := exporttest.New(t, tracker.Config{Clock: time.Now})
		exporttest.Train(t, tr)
		go func() {
			time.Sleep(5 * time.Second)
			_, err := tr.AllocBytes(3*alloc.MiB, tracker.Gradient)
			assert.NoError(t, err)
		}()
		w := get(t, live.Handler(tr), "profile?seconds=10")
		require.Equal(t, http.StatusOK, w.Code)
		p, err := profile.Parse(w.Body)
		require.NoError(t, err)
		require.Len(t, p.Sample, 1)
		assert.Equal(t, []int64{1, 3 << 20, 1, 3 << 20}, p.Sample[0].Value)
		assert.Equal(t, 10*time.Second, time.Duration(p.DurationNanos))
	})
}

func TestProfileOfSecondsEndsWithItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := live.Handler(exporttest.New(t, tracker.Config{}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w := httptest.NewRecorder()
		start := time.Now()
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/profile?seconds=3600", nil))
		assert.Equal(t, http.StatusServiceUnavailable, w.Code)
		assert.Equal(t, time.Second, time.Since(start))
	})
}

// stuck is a client that takes nothing: its first Write does not return before
// the test ends.
type stuck struct {
	header  http.Header
	writing chan struct{} // closed by the first Write
	release <-chan struct{}
}

func (s *stuck) Header() http.Header              { return s.header }
func (s *stuck) WriteHeader(int)                  {}
func (s *stuck) SetWriteDeadline(time.Time) error { return nil }
func (s *stuck) FlushError() error                { return nil }
func (s *stuck) Write(b []byte) (int, error) {
	close(s.writing)
	<-s.release
	return 0, io.ErrClosedPipe
}

// TestStuckClientsHoldUpNothing would not end if any page held a lock of the
// tracker's while its client takes nothing.
func TestStuckClientsHoldUpNothing(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{Clock: time.Now})
	exporttest.Train(t, tr)
	for _, page := range []string{"", "profile", "profile?debug=1", "snapshot", "dump", "trace", "memory_viz.pickle", "report", "leaks", "lines", "levels", "marks", "metrics"} {
		t.Run(page, func(t *testing.T) {
			release := make(chan struct{})
			client := &stuck{make(http.Header), make(chan struct{}), release}
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() { _ = recover() }() // http.ErrAbortHandler, which a server expects
				live.Handler(tr).ServeHTTP(client, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/"+page, nil))
			}()
			<-client.writing
			for range 300 { // more marks than are kept
				b, err := tr.AllocBytes(alloc.KiB, tracker.Temporary)
				require.NoError(t, err)
				tr.Track()
				require.NoError(t, b.Free())
			}
			_ = tr.Snapshot()
			close(release)
			<-done
		})
	}
}

// TestStuckClientsDelayNobody: what is made is not what is sent, so clients that take
// nothing do not use up the places of those that do.
func TestStuckClientsDelayNobody(t *testing.T) {
	h := live.Handler(trained(t))
	release := make(chan struct{})
	done := make(chan struct{})
	const clients = 40
	for range clients {
		client := &stuck{make(http.Header), make(chan struct{}), release}
		go func() {
			defer func() { _ = recover(); done <- struct{}{} }()
			h.ServeHTTP(client, httptest.NewRequest(http.MethodGet, "http://localhost/dump", nil))
		}()
		<-client.writing
	}
	for _, page := range []string{"", "profile", "snapshot", "dump", "report", "levels", "metrics", "leaks", "lines"} {
		assert.Equal(t, http.StatusOK, get(t, h, page).Code, page)
	}
	close(release)
	for range clients {
		<-done
	}
}
