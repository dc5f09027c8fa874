package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// heartbeat is how often a client without news gets a line: only by writing does a server find out
// that a client is gone.
const heartbeat = 15 * time.Second

// marks streams each mark as a server-sent event: first those that the tracker
// has kept, then the new ones.
func (h *handler) marks(w http.ResponseWriter, r *http.Request) {
	q := newQuery(r)
	after := q.number("after", 1<<31-1)
	if q.refused(w) {
		return
	}
	if last, ok := h.lastSeen(r); ok {
		after = last
	}
	if h.closed(after) {
		w.WriteHeader(http.StatusNoContent) // tells a browser not to connect again
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	s := stream{newPatient(w), h.run}
	if err := s.control.Flush(); errors.Is(err, http.ErrNotSupported) {
		http.Error(w, "marks cannot be streamed: a middleware's http.ResponseWriter cannot flush, and has no Unwrap", http.StatusInternalServerError)
		return
	}
	err := s.send(": marks of the tracker\n\n")
	for err == nil {
		var m *snapshot.Mark
		m, err = h.nextMark(r.Context(), after)
		switch {
		case errors.Is(err, context.DeadlineExceeded) && r.Context().Err() == nil:
			err = s.send(": still here\n\n")
		case errors.Is(err, alloc.ErrClosed):
			_ = s.send("event: closed\ndata: {}\n\n")
		case err == nil:
			err = s.mark(m, after)
			after = m.Seq
		}
	}
}

// ended reports whether there will be no more marks.
func (h *handler) ended() bool { return h.closed(math.MaxInt) }

// closed reports whether there is no mark after that one, and will be none.
func (h *handler) closed(after int) bool {
	_, err := h.source.WaitMark(canceled, after)
	return errors.Is(err, alloc.ErrClosed)
}

// canceled is for a look at what there is, without waiting.
var canceled = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// lastSeen returns the number of the mark that a browser saw last, when it connects again. The marks of a
// program before this one do not count.
func (h *handler) lastSeen(r *http.Request) (int, bool) {
	run, seq, _ := strings.Cut(r.Header.Get("Last-Event-ID"), "-")
	last, err := strconv.Atoi(seq)
	return last, err == nil && run == h.run
}

func (h *handler) nextMark(ctx context.Context, after int) (*snapshot.Mark, error) {
	ctx, cancel := context.WithTimeout(ctx, heartbeat)
	defer cancel()
	return h.source.WaitMark(ctx, after)
}

// stream is a response of server-sent events.
type stream struct {
	*patient
	run string
}

func (s stream) mark(m *snapshot.Mark, after int) error {
	if missed := m.Seq - after - 1; missed > 0 && after > 0 {
		if err := s.send(fmt.Sprintf("event: missed\ndata: {\"marks\": %d}\n\n", missed)); err != nil {
			return err
		}
	}
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return s.send(fmt.Sprintf("id: %s-%d\nevent: mark\ndata: %s\n\n", s.run, m.Seq, text))
}

func (s stream) send(text string) error {
	if _, err := io.WriteString(s.patient, text); err != nil {
		return err
	}
	return s.control.Flush()
}
