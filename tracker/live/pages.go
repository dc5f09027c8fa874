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

// profile answers as net/http/pprof does for heap profiles.
func (h *handler) profile(w http.ResponseWriter, r *http.Request) {
	seconds, ok := number(w, r, "seconds", maxSeconds)
	if !ok {
		return
	}
	debug := r.FormValue("debug") != "" && r.FormValue("debug") != "0"
	if seconds > 0 && debug {
		http.Error(w, "seconds and debug do not go together: a difference is a binary profile", http.StatusBadRequest)
		return
	}
	if r.FormValue("gc") != "" && r.FormValue("gc") != "0" {
		runtime.GC()
	}
	switch {
	case debug:
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		io.WriteString(newPatient(w), h.tracker.LightSnapshot().String())
	case seconds > 0:
		h.profileDelta(w, r, time.Duration(seconds)*time.Second)
	default:
		send(w, binaryType, "gpumem.pb.gz", func(w io.Writer) error {
			return pprof.Write(w, export.Record{Snapshot: h.tracker.LightSnapshot()})
		})
	}
}

func (h *handler) profileDelta(w http.ResponseWriter, r *http.Request, d time.Duration) {
	usage := func() *export.Usage { return export.FromSnapshot(h.tracker.LightSnapshot()) }
	// The server's own WriteTimeout would end the request before there is an answer.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d + patience))
	base := pprof.Profile(usage())
	if err := wait(r.Context(), d); err != nil {
		http.Error(w, "the request was ended: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	delta, err := pprof.Sub(pprof.Profile(usage()), base)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	send(w, binaryType, "gpumem-delta.pb.gz", delta.Write)
}

// send writes a file. An error that comes after its first bytes ends the
// connection, so that the client does not take a part for the whole.
func send(w http.ResponseWriter, contentType, name string, write func(io.Writer) error) {
	header := w.Header()
	header.Set("Content-Type", contentType)
	if name != "" {
		header.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
	}
	if err := write(newPatient(w)); err != nil {
		panic(http.ErrAbortHandler)
	}
}

func (h *handler) snapshot(w http.ResponseWriter, r *http.Request) {
	take := h.tracker.Snapshot
	if light := r.FormValue("light"); light != "" && light != "0" {
		take = h.tracker.LightSnapshot
	}
	send(w, jsonType, "", take().WriteJSON)
}

func (h *handler) dump(w http.ResponseWriter, _ *http.Request) {
	send(w, jsonType, "gpumem.dump.json", func(w io.Writer) error { return h.tracker.Dump(w, "asked for over HTTP") })
}

func (h *handler) trace(w http.ResponseWriter, _ *http.Request) {
	send(w, jsonType, "gpumem.trace.json", func(w io.Writer) error { return trace.Write(w, export.Take(h.tracker)) })
}

func (h *handler) pickle(w http.ResponseWriter, _ *http.Request) {
	send(w, binaryType, "gpumem.pickle", func(w io.Writer) error { return torch.Write(w, export.Take(h.tracker)) })
}

func (h *handler) report(w http.ResponseWriter, _ *http.Request) {
	send(w, "text/html; charset=utf-8", "", func(w io.Writer) error { return html.Write(w, export.Take(h.tracker)) })
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
