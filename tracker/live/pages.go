package live

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/html"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/pprof"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/trace"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/timeline"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// The answers that are files.
var (
	jsonFile = file{contentType: "application/json"}
	textFile = file{contentType: "text/plain; charset=utf-8"}
	htmlFile = file{contentType: "text/html; charset=utf-8"}
	profiles = file{contentType: "application/octet-stream", packed: true}
)

func (f file) named(name string) file {
	f.name = name
	return f
}

const maxSeconds = 24 * 60 * 60

// profile answers as net/http/pprof does for heap profiles. A garbage collection costs the program
// time, so the request for it must be a POST, and must not come from a page of another site.
func (h *handler) profile(w http.ResponseWriter, r *http.Request) {
	q := newQuery(r)
	seconds, debug, collect := q.number("seconds", maxSeconds), q.flag("debug"), h.inside && q.flag("gc")
	if seconds > 0 && debug {
		q.fail("seconds and debug do not go together: a difference is a binary profile")
	}
	if q.refused(w) {
		return
	}
	if collect && r.Method != http.MethodPost {
		refuseMethod(w, "POST", "gc=1 runs a collection: ask for it by POST")
		return
	}
	if err := http.NewCrossOriginProtection().Check(r); err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	take := h.source.LightSnapshot
	if collect {
		take = func() *snapshot.Snapshot {
			runtime.GC()
			return h.source.LightSnapshot()
		}
	}
	switch {
	case seconds > 0:
		h.waiting.guard(func(w http.ResponseWriter, r *http.Request) {
			h.profileDelta(w, r, time.Duration(seconds)*time.Second, take)
		})(w, r)
	case debug:
		h.send(w, r, textFile, h.within(h.light, r, func(w io.Writer) error {
			_, err := io.WriteString(w, take().String())
			return err
		}))
	default:
		h.send(w, r, profiles.named("gpumem.pb.gz"), h.within(h.light, r, func(w io.Writer) error {
			return pprof.Write(w, &snapshot.Dump{Snapshot: take()})
		}))
	}
}

func (h *handler) profileDelta(w http.ResponseWriter, r *http.Request, d time.Duration, take func() *snapshot.Snapshot) {
	// The server's own WriteTimeout would end the request before there is an answer.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d + patience))
	h.send(w, r, profiles.named("gpumem-delta.pb.gz"), func(w io.Writer) error {
		next, base, err := h.twice(r.Context(), d, take)
		if err != nil {
			return fmt.Errorf("the profile of %v was not made: %w", d, err)
		}
		return pprof.WriteDelta(w, next, base)
	})
}

// twice returns what there is after a wait of d, and what there was before it.
func (h *handler) twice(ctx context.Context, d time.Duration, take func() *snapshot.Snapshot) (next, base *export.Usage, err error) {
	if base, err = h.usage(ctx, take); err != nil {
		return nil, nil, err
	}
	if err = wait(ctx, d); err != nil {
		return nil, nil, err
	}
	next, err = h.usage(ctx, take)
	return next, base, err
}

// usage takes a snapshot when there are few enough requests that do such work.
func (h *handler) usage(ctx context.Context, take func() *snapshot.Snapshot) (*export.Usage, error) {
	if err := h.light.enter(ctx); err != nil {
		return nil, err
	}
	defer h.light.leave()
	return export.FromSnapshot(take()), nil
}

func (h *handler) snapshot(w http.ResponseWriter, r *http.Request) {
	q := newQuery(r)
	take := h.source.Snapshot
	if q.flag("light") {
		take = h.source.LightSnapshot
	}
	if !q.refused(w) {
		h.send(w, r, jsonFile, h.within(h.copies, r, func(w io.Writer) error { return take().WriteJSON(w) }))
	}
}

// whole answers with all that the tracker knows.
func (h *handler) whole(w http.ResponseWriter, r *http.Request, f file, write func(io.Writer) error) {
	if !newQuery(r).refused(w) {
		h.send(w, r, f, h.within(h.copies, r, write))
	}
}

// dump answers with the dump as JSON. That of a tracker which is closed would say that its buffers are freed.
func (h *handler) dump(w http.ResponseWriter, r *http.Request) {
	h.whole(w, r, jsonFile.named("gpumem.dump.json"), func(w io.Writer) error {
		d := h.source.Dump()
		if h.inside && h.ended() {
			return fmt.Errorf("write dump: tracker: %w", alloc.ErrClosed)
		}
		d.Reason = cmp.Or(d.Reason, "asked for over HTTP")
		return d.WriteJSON(w)
	})
}

func (h *handler) trace(w http.ResponseWriter, r *http.Request) {
	h.whole(w, r, jsonFile.named("gpumem.trace.json"), func(w io.Writer) error { return trace.Write(w, h.source.Dump()) })
}

func (h *handler) pickle(w http.ResponseWriter, r *http.Request) {
	f := file{contentType: "application/octet-stream", name: "gpumem.pickle"}
	h.whole(w, r, f, func(w io.Writer) error { return torch.Write(w, h.source.Dump()) })
}

func (h *handler) report(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Security-Policy", html.Policy()+"; frame-ancestors 'none'")
	h.whole(w, r, htmlFile, func(w io.Writer) error { return html.Write(w, h.source.Dump()) })
}

// leaksNow is the answer of /leaks.
type leaksNow struct {
	Suspects []leaks.Suspect `json:"suspects"`
	Growth   []leaks.Suspect `json:"growth"`
}

// leaks answers with JSON, or as text.
func (h *handler) leaks(w http.ResponseWriter, r *http.Request) {
	q := newQuery(r)
	debug := q.flag("debug")
	if q.refused(w) {
		return
	}
	f := jsonFile
	if debug {
		f = textFile
	}
	h.send(w, r, f, h.within(h.copies, r, func(w io.Writer) error {
		now := h.source.Snapshot()
		found := leaksNow{ // never null
			append([]leaks.Suspect{}, leaks.Suspects(now)...),
			append([]leaks.Suspect{}, leaks.Growing(now)...),
		}
		if debug {
			return found.print(w)
		}
		return json.NewEncoder(w).Encode(found)
	}))
}

func (l leaksNow) print(w io.Writer) error {
	var b bytes.Buffer
	for _, suspect := range l.Suspects {
		fmt.Fprintln(&b, suspect)
	}
	for _, growth := range l.Growth {
		fmt.Fprintln(&b, growth)
	}
	_, err := b.WriteTo(w)
	return err
}

// levelsNow is the answer of /levels.
type levelsNow struct {
	Run    string    `json:"run"` // another one if the program was started again
	Closed bool      `json:"closed"`
	Device string    `json:"device"`
	Origin string    `json:"origin"`
	Time   time.Time `json:"time"`
	levels
	DriverUsed  jsonstream.Amount      `json:"driver_used_bytes"`
	DriverTotal jsonstream.Amount      `json:"driver_total_bytes"`
	Untracked   jsonstream.Amount      `json:"untracked_bytes"`
	Peak        mem.Tally              `json:"peak"`
	Total       mem.Tally              `json:"total"`
	Kinds       map[string]alloc.Bytes `json:"kinds"` // live bytes by kind
}

// levels is snapshot.Levels without its methods. Otherwise a struct that embeds it would have its
// MarshalJSON.
type levels snapshot.Levels

func (h *handler) levels(w http.ResponseWriter, r *http.Request) {
	if newQuery(r).refused(w) {
		return
	}
	h.send(w, r, jsonFile, func(w io.Writer) error {
		s := h.source.LightSnapshot()
		kinds := make(map[string]alloc.Bytes)
		for _, g := range s.Sub(nil) {
			if !g.Memory.OnHost() {
				kinds[g.Kind.String()] += g.Bytes
			}
		}
		return json.NewEncoder(w).Encode(levelsNow{
			h.run, h.ended(), export.Device(s), s.Origin.String(), s.Time,
			levels(s.Levels), jsonstream.Amount(s.DriverUsed), jsonstream.Amount(s.DriverTotal), jsonstream.Amount(s.Untracked()), s.Peak, s.Total, kinds,
		})
	})
}

// timeline answers with the levels of the past that the tracker has kept.
func (h *handler) timeline(w http.ResponseWriter, r *http.Request) {
	h.whole(w, r, jsonFile, func(w io.Writer) error {
		return json.NewEncoder(w).Encode(timeline.New(h.source.Dump()))
	})
}
