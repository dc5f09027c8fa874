package live_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// events reads the server-sent events of a response, as "name data".
type events struct {
	lines *bufio.Scanner
	id    *string // of the latest
}

func subscribe(t *testing.T, url string) (events, func()) { return resume(t, url, "") }

// resume subscribes as a browser does that comes back.
func resume(t *testing.T, url, lastID string) (events, func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	if lastID != "" {
		r.Header.Set("Last-Event-ID", lastID)
	}
	answer, err := http.DefaultClient.Do(r) //nolint:bodyclose // by the returned function
	require.NoError(t, err)
	require.Equal(t, "text/event-stream", answer.Header.Get("Content-Type"))
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	return events{lines, new(string)}, func() { cancel(); answer.Body.Close() }
}

func (e events) next(t *testing.T) (name, data string) {
	t.Helper()
	for e.lines.Scan() {
		line := e.lines.Text()
		switch {
		case strings.HasPrefix(line, "id: "):
			*e.id = line[len("id: "):]
		case strings.HasPrefix(line, "event: "):
			name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			data = line[len("data: "):]
		case line == "" && name != "":
			return name, data
		}
	}
	require.Fail(t, "the stream ended", e.lines.Err())
	return "", ""
}

func (e events) mark(t *testing.T) snapshot.Mark {
	t.Helper()
	name, data := e.next(t)
	require.Equal(t, "mark", name)
	var m snapshot.Mark
	require.NoError(t, json.Unmarshal([]byte(data), &m))
	return m
}

func TestMarksStream(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{Clock: time.Now, MaxMarks: 3})
	server := httptest.NewServer(live.Handler(tr))
	defer server.Close()
	tr.Track()

	stream, stop := subscribe(t, server.URL+"/marks")
	defer stop()
	assert.Equal(t, 1, stream.mark(t).Seq, "one from before")
	_, err := tr.AllocBytes(alloc.MiB, tracker.Input)
	require.NoError(t, err)
	want := tr.Track()
	got := stream.mark(t)
	assert.Equal(t, 2, got.Seq)
	assert.Equal(t, want.Delta, got.Delta)
	assert.Equal(t, want.Levels, got.Levels)

	for range 6 { // a client that comes back late
		tr.Track()
	}
	late, stop := subscribe(t, server.URL+"/marks?after=2")
	defer stop()
	name, data := late.next(t)
	assert.Equal(t, `missed {"marks": 3}`, name+" "+data)
	assert.Equal(t, 6, late.mark(t).Seq)

	require.NoError(t, tr.Close())
	for name != "closed" {
		name, _ = late.next(t)
	}
}

// TestMarksAreResumed where the client left off, unless that was another run:
// its program has ended, and this one counts from 1 again.
func TestMarksAreResumed(t *testing.T) {
	serve := func(marks int) (*tracker.MemTracker, string) {
		tr := exporttest.New(t, tracker.Config{Clock: time.Now})
		for range marks {
			tr.Track()
		}
		server := httptest.NewServer(live.Handler(tr))
		t.Cleanup(server.Close)
		t.Cleanup(func() { tr.Close() }) // first: it ends the streams, for which the server waits
		return tr, server.URL + "/marks"
	}
	_, first := serve(3)
	stream, stop := subscribe(t, first)
	stream.mark(t)
	assert.Equal(t, 2, stream.mark(t).Seq)
	stop()

	again, stop := resume(t, first, *stream.id)
	defer stop()
	assert.Equal(t, 3, again.mark(t).Seq)

	_, second := serve(1)
	other, stop := resume(t, second, *stream.id)
	defer stop()
	assert.Equal(t, 1, other.mark(t).Seq, "of this run, all")
}

// taker is a client that notes what it is given, and when it must have taken it.
type taker struct {
	*httptest.ResponseRecorder
	deadline time.Time
}

func (c *taker) SetWriteDeadline(at time.Time) error { c.deadline = at; return nil }

func TestMarksFindsAClientThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := exporttest.New(t, tracker.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		client := &taker{ResponseRecorder: httptest.NewRecorder()}
		done := make(chan struct{})
		go func() {
			defer close(done)
			live.Handler(tr).ServeHTTP(client, httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/marks", nil))
		}()
		time.Sleep(50 * time.Second)
		synctest.Wait()
		assert.Equal(t, 3, strings.Count(client.Body.String(), ": still here"))
		assert.Equal(t, 25*time.Second, time.Until(client.deadline), "45 s and 30 s of patience")
		cancel()
		<-done
	})
}

// leaving is a client that is gone after some writes.
type leaving struct {
	http.ResponseWriter
	left int
}

func (l *leaving) FlushError() error { return nil }
func (l *leaving) Write(b []byte) (int, error) {
	if l.left--; l.left < 0 {
		return 0, fmt.Errorf("connection reset by peer")
	}
	return len(b), nil
}

// TestMarksThroughAMiddlewareThatHidesFlush: it could pass on nothing before its end.
func TestMarksThroughAMiddlewareThatHidesFlush(t *testing.T) {
	w := httptest.NewRecorder()
	hiding := struct{ http.ResponseWriter }{w}
	live.Handler(exporttest.New(t, tracker.Config{})).ServeHTTP(hiding, httptest.NewRequest(http.MethodGet, "http://localhost/marks", nil))
	assert.Equal(t, http.StatusInternalServerError, w.Code)
	assert.Contains(t, w.Body.String(), "cannot flush")
}

func TestMarksEndsWhenAWriteFails(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	tr.Track()
	tr.Track()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/marks", nil)
	live.Handler(tr).ServeHTTP(&leaving{httptest.NewRecorder(), 2}, r) // returns
}
