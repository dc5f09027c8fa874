package live

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/google/pprof/profile"

	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/html"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/pprof"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/trace"
)

const (
	jsonType   = "application/json"
	binaryType = "application/octet-stream"
	maxSeconds = 24 * 60 * 60
)

// number reads a parameter that is a number from 0 to the most; 0 if it is not
// there. If it is none, it answers 400 and returns false.
func number(w http.ResponseWriter, r *http.Request, name string, most int) (int, bool) {
	text := r.FormValue(name)
	if text == "" {
		return 0, true
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > most {
		http.Error(w, fmt.Sprintf("%s=%q: want a number from 0 to %d", name, text, most), http.StatusBadRequest)
		return 0, false
	}
	return n, true
}

// isSet reads a parameter that is on or off.
func isSet(r *http.Request, name string) bool {
	text := r.FormValue(name)
	return text != "" && text != "0"
}

// profile answers as net/http/pprof does for heap profiles.
func (h *handler) profile(w http.ResponseWriter, r *http.Request) {
	seconds, ok := number(w, r, "seconds", maxSeconds)
	switch {
	case !ok:
	case seconds == 0:
		h.copies.guard(h.profileNow)(w, r)
	case isSet(r, "debug"):
		http.Error(w, "seconds and debug do not go together: a difference is a binary profile", http.StatusBadRequest)
	default:
		h.waiting.guard(func(w http.ResponseWriter, r *http.Request) {
			h.profileDelta(w, r, time.Duration(seconds)*time.Second)
		})(w, r)
	}
}

func (h *handler) profileNow(w http.ResponseWriter, r *http.Request) {
	if isSet(r, "debug") {
		send(w, r, "text/plain; charset=utf-8", "", func(w io.Writer) error {
			_, err := io.WriteString(w, h.light(r).String())
			return err
		})
		return
	}
	send(w, r, binaryType, "gpumem.pb.gz", func(w io.Writer) error {
		return pprof.Write(w, export.Record{Snapshot: h.light(r)})
	})
}

// light takes a snapshot, after a collection if the request asks for one.
func (h *handler) light(r *http.Request) *tracker.Snapshot {
	if isSet(r, "gc") {
		runtime.GC()
	}
	return h.tracker.LightSnapshot()
}

func (h *handler) profileDelta(w http.ResponseWriter, r *http.Request, d time.Duration) {
	// The server's own WriteTimeout would end the request before there is an answer.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d + patience))
	send(w, r, binaryType, "gpumem-delta.pb.gz", func(w io.Writer) error {
		delta, err := h.delta(r, d)
		if err != nil {
			return fmt.Errorf("the profile of %v was not made: %w", d, err)
		}
		return delta.Write(w)
	})
}

// delta returns the profile of what changes in that time.
func (h *handler) delta(r *http.Request, d time.Duration) (*profile.Profile, error) {
	base, err := h.take(r)
	if err != nil {
		return nil, err
	}
	if err := wait(r.Context(), d); err != nil {
		return nil, err
	}
	next, err := h.take(r)
	if err != nil {
		return nil, err
	}
	return pprof.Sub(next, base)
}

// take makes a profile when there are few enough requests that do such work.
func (h *handler) take(r *http.Request) (*profile.Profile, error) {
	if err := h.copies.enter(r.Context()); err != nil {
		return nil, err
	}
	defer h.copies.leave()
	return pprof.Profile(export.FromSnapshot(h.light(r))), nil
}

func (h *handler) snapshot(w http.ResponseWriter, r *http.Request) {
	take := h.tracker.Snapshot
	if isSet(r, "light") {
		take = h.tracker.LightSnapshot
	}
	send(w, r, jsonType, "", func(w io.Writer) error { return take().WriteJSON(w) })
}

func (h *handler) dump(w http.ResponseWriter, r *http.Request) {
	send(w, r, jsonType, "gpumem.dump.json", func(w io.Writer) error { return h.tracker.Dump(w, "asked for over HTTP") })
}

func (h *handler) trace(w http.ResponseWriter, r *http.Request) {
	send(w, r, jsonType, "gpumem.trace.json", func(w io.Writer) error { return trace.Write(w, export.Take(h.tracker)) })
}

func (h *handler) pickle(w http.ResponseWriter, r *http.Request) {
	send(w, r, binaryType, "gpumem.pickle", func(w io.Writer) error { return torch.Write(w, export.Take(h.tracker)) })
}

func (h *handler) report(w http.ResponseWriter, r *http.Request) {
	send(w, r, "text/html; charset=utf-8", "", func(w io.Writer) error { return html.Write(w, export.Take(h.tracker)) })
}

// leaksNow is what /leaks answers.
type leaksNow struct {
	Suspects []tracker.Suspect `json:"suspects"`
	Growth   []tracker.Growth  `json:"growth"`
}

// leaks answers with JSON, or as text.
func (h *handler) leaks(w http.ResponseWriter, r *http.Request) {
	contentType := jsonType
	if isSet(r, "debug") {
		contentType = "text/plain; charset=utf-8"
	}
	send(w, r, contentType, "", func(w io.Writer) error {
		found := leaksNow{ // never null
			append([]tracker.Suspect{}, h.tracker.Suspects()...),
			append([]tracker.Growth{}, h.tracker.Growth()...),
		}
		if isSet(r, "debug") {
			return found.print(w)
		}
		return json.NewEncoder(w).Encode(found)
	})
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

// levelsNow is what /levels answers.
type levelsNow struct {
	Time time.Time `json:"time"`
	tracker.Levels
	Untracked int64         `json:"untracked_bytes"`
	Peak      tracker.Tally `json:"peak"`
	Total     tracker.Tally `json:"total"`
}

func (h *handler) levels(w http.ResponseWriter, _ *http.Request) {
	s := h.tracker.LightSnapshot()
	answer(w, jsonType, func(b *bytes.Buffer) error {
		return json.NewEncoder(b).Encode(levelsNow{s.Time, s.Levels, int64(s.Untracked()), s.Peak, s.Total})
	})
}
