package viewer

import (
	"context"
	"net/http"
	"time"

	"github.com/gpumemtrack/gpumemtrack/tracker/live/internal/request"
)

// stateJSON is the state of all files.
type stateJSON struct {
	Seq     int        `json:"seq"`
	Done    bool       `json:"done"` // all files are read, or have failed
	Program string     `json:"program"`
	Version string     `json:"version"`
	Files   []fileJSON `json:"files"`
}

type fileJSON struct {
	File       int         `json:"file"`
	Name       string      `json:"name"`
	Path       string      `json:"path"`
	State      string      `json:"state"`
	BytesDone  int64       `json:"bytes_done"`
	BytesTotal *int64      `json:"bytes_total"`
	Seconds    float64     `json:"seconds"`
	Error      *string     `json:"error"`
	Format     *string     `json:"format"`
	Rank       *int        `json:"rank"`
	Host       *string     `json:"host"`
	Program    *string     `json:"program"`
	Early      bool        `json:"early"`
	Tracks     []trackJSON `json:"tracks"`
}

// waitForChange is how long a request for the next state waits.
const waitForChange = 20 * time.Second

// state answers at once, or, if it is asked for what comes after a state, when that is there.
func state(s *session, r *http.Request, q *request.Query) (answer, error) {
	wait, after := q.Has("after"), q.Number("after", 1<<31-1)
	if err := checked(q); err != nil {
		return answer{}, err
	}
	if wait {
		s.waitAfter(r.Context(), after)
	}
	return asJSON(s.stateNow())
}

func (s *session) waitAfter(ctx context.Context, seq int) {
	timer := time.NewTimer(waitForChange)
	defer timer.Stop()
	for {
		s.mu.Lock()
		now, changed := s.seq, s.changed
		s.mu.Unlock()
		if now > seq {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (s *session) stateNow() stateJSON {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := stateJSON{Seq: s.seq, Done: true, Program: "gpumemtrack", Version: s.version, Files: []fileJSON{}}
	for _, f := range s.files {
		out.Done = out.Done && (f.state == stateReady || f.state == stateFailed)
		out.Files = append(out.Files, f.json())
	}
	return out
}

// json describes the file. Its caller holds the lock.
func (f *file) json() fileJSON {
	out := fileJSON{
		File: f.number, Name: printable(f.Name), Path: printable(f.Path), State: f.state, BytesDone: f.done, Seconds: f.spent.Seconds(),
		Rank: f.origin.Rank, Host: known(f.origin.Host), Program: known(f.origin.Program), Format: known(f.format), Early: f.early != nil, Tracks: []trackJSON{},
	}
	if f.Size > 0 {
		out.BytesTotal = &f.Size
	}
	if f.state == stateReading || f.state == stateIndexing {
		out.Seconds = time.Since(f.begun).Seconds()
	}
	if f.err != nil {
		words := printable(f.err.Error())
		out.Error = &words
	}
	for _, t := range f.tracks {
		out.Tracks = append(out.Tracks, t.about)
	}
	return out
}

func earlyTable(s *session, _ *http.Request, q *request.Query) (answer, error) {
	n := q.Number("file", 1<<31-1)
	if err := checked(q); err != nil {
		return answer{}, err
	}
	s.mu.Lock()
	var early *earlyJSON
	if n < len(s.files) {
		early = s.files[n].early
	}
	s.mu.Unlock()
	if early == nil {
		return answer{}, notFound("file %d has no early table", n)
	}
	return asJSON(early)
}
