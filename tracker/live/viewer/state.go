package viewer

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/live/internal/request"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
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
func (v *Viewer) state(r *http.Request, q *request.Query) (answer, error) {
	wait, after := q.Has("after"), q.Number("after", 1<<31-1)
	if err := checked(q); err != nil {
		return answer{}, err
	}
	if wait {
		v.waitAfter(r.Context(), after)
	}
	return asJSON(v.stateNow())
}

func (v *Viewer) waitAfter(ctx context.Context, seq int) {
	timer := time.NewTimer(waitForChange)
	defer timer.Stop()
	for {
		v.mu.Lock()
		now, changed := v.seq, v.changed
		v.mu.Unlock()
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

func (v *Viewer) stateNow() stateJSON {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := stateJSON{Seq: v.seq, Done: true, Program: "gpumemtrack", Version: v.version, Files: []fileJSON{}}
	for _, f := range v.files {
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

// known returns a text that can be printed, or nil if it is empty.
func known(s string) *string {
	if s == "" {
		return nil
	}
	s = printable(s)
	return &s
}

// maxText bounds a text from a file, in bytes.
const maxText = 1000

// printable returns a text from a file as one short line. The page puts it on the screen as text, never as HTML.
func printable(s string) string { return text.Line(cut(s, maxText)) }

func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return text.UTF8(s[:most/2]) + "…" + text.UTF8(s[len(s)-most/2:])
}

// earlyJSON is the live table of a file that is still read.
type earlyJSON struct {
	Moment   string      `json:"moment"`
	Bytes    int64       `json:"bytes"`
	Count    int64       `json:"count"`
	Reserved int64       `json:"reserved_bytes"`
	Lines    []earlyLine `json:"lines"`
	More     struct {
		Lines int   `json:"lines"`
		Bytes int64 `json:"bytes"`
		Count int64 `json:"count"`
	} `json:"more"`
}

type earlyLine struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Bytes int64  `json:"bytes"`
	Count int64  `json:"count"`
}

// newEarly sums up what is live by line and kind.
func newEarly(s *snapshot.Snapshot) *earlyJSON {
	const most = 200
	type key struct {
		line mem.Frame
		kind mem.Kind
	}
	out := &earlyJSON{Moment: "end", Bytes: int64(s.Live.Bytes), Count: s.Live.Count, Reserved: int64(s.Reserved), Lines: []earlyLine{}}
	sums := make(map[key]mem.Tally)
	for site := range s.CallSites() {
		if !site.Memory.OnHost() && !site.Live.IsZero() {
			k := key{site.CallSite, site.Kind}
			sums[k] = sums[k].Add(site.Live)
		}
	}
	for k, t := range sums {
		out.Lines = append(out.Lines, earlyLine{printable(k.line.String()), printable(k.kind.String()), int64(t.Bytes), t.Count})
	}
	slices.SortFunc(out.Lines, func(a, b earlyLine) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	for _, l := range out.Lines[min(most, len(out.Lines)):] {
		out.More.Lines++
		out.More.Bytes += l.Bytes
		out.More.Count += l.Count
	}
	out.Lines = out.Lines[:min(most, len(out.Lines))]
	return out
}

func (v *Viewer) earlyTable(_ *http.Request, q *request.Query) (answer, error) {
	n := q.Number("file", 1<<31-1)
	if err := checked(q); err != nil {
		return answer{}, err
	}
	v.mu.Lock()
	var early *earlyJSON
	if n < len(v.files) {
		early = v.files[n].early
	}
	v.mu.Unlock()
	if early == nil {
		return answer{}, notFound("file %d has no early table", n)
	}
	return asJSON(early)
}
