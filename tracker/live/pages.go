package live

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/html"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/pprof"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/prom"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/trace"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/timeline"
	"github.com/gpumemtrack/gpumemtrack/tracker/live/internal/request"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

const maxSeconds = 24 * 60 * 60

// profile answers as net/http/pprof does for heap profiles. A garbage collection costs the program
// time, so the request for it must be a POST, and must not come from a page of another site.
func (h *handler) profile(w http.ResponseWriter, r *http.Request) {
	q := request.New(r)
	seconds, debug, collect := q.Number("seconds", maxSeconds), q.Flag("debug"), h.inProcess && q.Flag("gc")
	if seconds > 0 && debug {
		q.Fail("seconds and debug do not go together: a difference is a binary profile")
	}
	if q.Refused(w) {
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
		h.waiting.wrap(func(w http.ResponseWriter, r *http.Request) {
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
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d + writeTimeout))
	h.send(w, r, profiles.named("gpumem-delta.pb.gz"), func(w io.Writer) error {
		next, base, err := h.usageBeforeAndAfter(r.Context(), d, take)
		if err != nil {
			return fmt.Errorf("the profile of %v was not made: %w", d, err)
		}
		return pprof.WriteDelta(w, next, base)
	})
}

// usageBeforeAndAfter returns the usage after a wait of d, and that before it.
func (h *handler) usageBeforeAndAfter(ctx context.Context, d time.Duration, take func() *snapshot.Snapshot) (next, base *export.Usage, err error) {
	if base, err = h.usage(ctx, take); err != nil {
		return nil, nil, err
	}
	if err = sleep(ctx, d); err != nil {
		return nil, nil, err
	}
	next, err = h.usage(ctx, take)
	return next, base, err
}

// usage takes a snapshot, limited by the semaphore of light answers.
func (h *handler) usage(ctx context.Context, take func() *snapshot.Snapshot) (*export.Usage, error) {
	if err := h.light.acquire(ctx); err != nil {
		return nil, err
	}
	defer h.light.release()
	return export.FromSnapshot(take()), nil
}

func (h *handler) snapshot(w http.ResponseWriter, r *http.Request) {
	q := request.New(r)
	take := h.source.Snapshot
	if q.Flag("light") {
		take = h.source.LightSnapshot
	}
	if !q.Refused(w) {
		h.send(w, r, jsonFile, h.within(h.copies, r, func(w io.Writer) error { return take().WriteJSON(w) }))
	}
}

// sendFull answers from a copy of the whole ledger.
func (h *handler) sendFull(w http.ResponseWriter, r *http.Request, f file, write func(io.Writer) error) {
	if !request.New(r).Refused(w) {
		h.send(w, r, f, h.within(h.copies, r, write))
	}
}

// dump answers with the dump as JSON. A closed tracker has none: all of its buffers would be freed.
func (h *handler) dump(w http.ResponseWriter, r *http.Request) {
	h.sendFull(w, r, jsonFile.named("gpumem.dump.json"), func(w io.Writer) error {
		d := h.source.Dump()
		if h.inProcess && h.ended() {
			return fmt.Errorf("write dump: tracker: %w", alloc.ErrClosed)
		}
		d.Reason = cmp.Or(d.Reason, "asked for over HTTP")
		return d.WriteJSON(w)
	})
}

func (h *handler) trace(w http.ResponseWriter, r *http.Request) {
	h.sendFull(w, r, jsonFile.named("gpumem.trace.json"), func(w io.Writer) error { return trace.Write(w, h.source.Dump()) })
}

func (h *handler) pickle(w http.ResponseWriter, r *http.Request) {
	f := file{contentType: "application/octet-stream", name: "gpumem.pickle"}
	h.sendFull(w, r, f, func(w io.Writer) error { return torch.Write(w, h.source.Dump()) })
}

func (h *handler) report(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Security-Policy", html.Policy()+"; frame-ancestors 'none'")
	h.sendFull(w, r, htmlFile, func(w io.Writer) error { return html.Write(w, h.source.Dump()) })
}

func (h *handler) lines(w http.ResponseWriter, r *http.Request) {
	h.sendFull(w, r, jsonFile, func(w io.Writer) error { return json.NewEncoder(w).Encode(linesOf(h.source.Snapshot())) })
}

// leaksAnswer is the answer of /leaks.
type leaksAnswer struct {
	Suspects []leaks.Suspect `json:"suspects"`
	Growth   []leaks.Suspect `json:"growth"`
}

// leaks answers with JSON, or as text.
func (h *handler) leaks(w http.ResponseWriter, r *http.Request) {
	q := request.New(r)
	debug := q.Flag("debug")
	if q.Refused(w) {
		return
	}
	f := jsonFile
	if debug {
		f = textFile
	}
	h.send(w, r, f, h.within(h.copies, r, func(w io.Writer) error {
		now := h.source.Snapshot()
		found := leaksAnswer{ // never null
			append([]leaks.Suspect{}, leaks.Suspects(now)...),
			append([]leaks.Suspect{}, leaks.Growing(now)...),
		}
		if debug {
			return found.print(w)
		}
		return json.NewEncoder(w).Encode(found)
	}))
}

func (l leaksAnswer) print(w io.Writer) error {
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

// levelsAnswer is the answer of /levels.
type levelsAnswer struct {
	Run    string    `json:"run"` // changes when the program is restarted
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
	if request.New(r).Refused(w) {
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
		return json.NewEncoder(w).Encode(levelsAnswer{
			h.run, h.ended(), export.Device(s), s.Origin.String(), s.Time,
			levels(s.Levels), jsonstream.Amount(s.DriverUsed), jsonstream.Amount(s.DriverTotal), jsonstream.Amount(s.Untracked()), s.Peak, s.Total, kinds,
		})
	})
}

// timeline answers with the levels of the past that the tracker has kept.
func (h *handler) timeline(w http.ResponseWriter, r *http.Request) {
	h.sendFull(w, r, jsonFile, func(w io.Writer) error {
		return json.NewEncoder(w).Encode(timeline.New(h.source.Dump()))
	})
}

func (h *handler) metrics(w http.ResponseWriter, r *http.Request) {
	one := func(yield func(Source) bool) { yield(h.source) }
	h.scrape(w, r, one, func(*snapshot.Snapshot) prometheus.Labels { return nil })
}

// scrape answers with the metrics of sources, in the format that the client asks for. The labels that labels returns are
// added to those of a source's device.
//
// Each scrape has a registry of its own: the series of a source that is gone are gone too. promhttp writes after all
// snapshots are taken, so a slow client delays nothing.
func (h *handler) scrape(w http.ResponseWriter, r *http.Request, sources iter.Seq[Source], labels func(*snapshot.Snapshot) prometheus.Labels) {
	q := request.New(r)
	cfg, suspects := prom.Config{TopCallSites: q.Number("top", 100)}, q.Flag("suspects")
	if q.Refused(w) {
		return
	}
	registry := prometheus.NewRegistry()
	var err error
	switch {
	case r.Method == http.MethodHead: // has no body
	case suspects:
		err = h.limited(h.copies, r, func() error { return register(registry, sources, Source.Snapshot, cfg, labels) })
	default:
		err = register(registry, sources, Source.LightSnapshot, cfg, labels)
	}
	if err != nil {
		refuse(w, err)
		return
	}
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(newDeadlineWriter(w), r)
}

// register adds a collector of each source to a registry. All values of a source are of one snapshot.
func register(to prometheus.Registerer, sources iter.Seq[Source], take func(Source) *snapshot.Snapshot, cfg prom.Config, labels func(*snapshot.Snapshot) prometheus.Labels) error {
	for source := range sources {
		s := take(source)
		collector := prom.NewCollector(func() *snapshot.Snapshot { return s }, cfg)
		err := prometheus.WrapRegistererWith(labels(s), to).Register(collector)
		if _, known := errors.AsType[prometheus.AlreadyRegisteredError](err); known {
			continue // an earlier process may have had the same number: the first source with it counts
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// heartbeat is the interval of lines to a client without marks: a server notices only on a write that
// the client is gone.
const heartbeat = 15 * time.Second

// marks streams each mark as a server-sent event: first those that the tracker
// has kept, then the new ones.
func (h *handler) marks(w http.ResponseWriter, r *http.Request) {
	q := request.New(r)
	after := q.Number("after", 1<<31-1)
	if q.Refused(w) {
		return
	}
	if last, ok := h.lastSeen(r); ok {
		after = last
	}
	if h.closed(after) {
		w.WriteHeader(http.StatusNoContent) // a browser does not reconnect then
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	s := stream{newDeadlineWriter(w), h.run}
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
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // so that WaitMark does not wait
	_, err := h.source.WaitMark(ctx, after)
	return errors.Is(err, alloc.ErrClosed)
}

// lastSeen returns the number of the last mark that a reconnecting browser has seen, unless that is of
// another run of the program.
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
	*deadlineWriter
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
	if _, err := io.WriteString(s.deadlineWriter, text); err != nil {
		return err
	}
	return s.control.Flush()
}
