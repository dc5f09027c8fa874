package viewer

import (
	"net/http"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/bands"
	"github.com/gpumemtrack/gpumemtrack/tracker/live/internal/request"
)

// levelsJSON is what is held at a moment. What is live passes the filter; the other levels are of all.
type levelsJSON struct {
	Moment    uint32   `json:"moment"`
	Seconds   *float64 `json:"seconds"`
	LiveBytes int64    `json:"live_bytes"`
	LiveCount int      `json:"live_count"`
	Allocated int64    `json:"allocated_bytes"`
	Reserved  *int64   `json:"reserved_bytes"`
}

// momentOfTrack answers the levels of a moment, which is named by its number or by its time (x, in seconds).
func momentOfTrack(s *session, r *http.Request, q *request.Query) (answer, error) {
	a, err := s.asked(q)
	if err != nil {
		return answer{}, err
	}
	const long = 1 << 40
	m, x := a.momentOf(q, "moment"), q.Float("x", 0, long, 0)
	if q.Has("x") {
		switch {
		case q.Has("moment"):
			q.Fail("x and moment: want one of them")
		case a.track != nil && a.Untimed():
			q.Fail("x=%g: the events of this track have no times", x)
		case a.track != nil:
			m = min(a.MomentAt(x), a.Moments()-1)
		}
	}
	return s.respond(r, q, a, func(l *bands.Layer) (any, error) {
		out := levelsJSON{Moment: m, Seconds: a.secondsAt(m), LiveBytes: l.Level(m), LiveCount: l.Count(m)}
		allocated, reserved, known := a.Allocated(m)
		out.Allocated = allocated
		if known {
			out.Reserved = &reserved
		}
		return out, nil
	})
}
