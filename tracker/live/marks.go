package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// heartbeat is how often a client without news gets a line, by which a server
// finds out that it is gone.
const heartbeat = 15 * time.Second

// marks streams each mark as a server-sent event: first those that the tracker
// has kept, then the new ones.
func (h *handler) marks(w http.ResponseWriter, r *http.Request) {
	after, ok := number(w, r, "after", 1<<31-1)
	if !ok {
		return
	}
	if last, err := strconv.Atoi(r.Header.Get("Last-Event-ID")); err == nil {
		after = last // the browser comes back
	}
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	s := stream{newPatient(w)}
	err := s.send(": marks of the tracker\n\n")
	for err == nil {
		var m *tracker.Mark
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

func (h *handler) nextMark(ctx context.Context, after int) (*tracker.Mark, error) {
	ctx, cancel := context.WithTimeout(ctx, heartbeat)
	defer cancel()
	return h.tracker.WaitMark(ctx, after)
}

// stream is a response of server-sent events.
type stream struct{ patient }

func (s stream) mark(m *tracker.Mark, after int) error {
	if missed := m.Seq - after - 1; missed > 0 && after > 0 {
		if err := s.send(fmt.Sprintf("event: missed\ndata: {\"marks\": %d}\n\n", missed)); err != nil {
			return err
		}
	}
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return s.send(fmt.Sprintf("id: %d\nevent: mark\ndata: %s\n\n", m.Seq, text))
}

func (s stream) send(text string) error {
	if _, err := io.WriteString(s.patient, text); err != nil {
		return err
	}
	return s.control.Flush()
}
