package live

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

const (
	maxCopies  = 4  // answers at a time that are made from a copy of the whole ledger
	maxLight   = 4  // light answers at a time, made from groups and call sites
	maxReaders = 64 // clients of marks at a time
	maxWaiting = 64 // profiles at a time that wait for their seconds to pass
)

type handler struct {
	source  Source
	inside  bool   // the source shows the memory of this program
	run     string // tells marks of this run from those of an earlier one
	pages   map[string]http.HandlerFunc
	hosts   map[string]bool // that the program lets in
	busy    time.Duration   // how long a request waits for a place to make its answer
	copies  limit
	light   limit
	waiting limit
	files   limit
	readers limit
}

// wait waits for some time, or until the client is gone.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Source has the memory that the pages show: a *tracker.MemTracker for this program's, an
// *attach.Source for another program's. Any goroutine may call its methods.
//
// If a source also has a tracker's method ClearCache, its memory is in this program: /profile then
// accepts gc=1.
type Source interface {
	Snapshot() *snapshot.Snapshot
	LightSnapshot() *snapshot.Snapshot // without single allocations
	// WaitMark returns the oldest mark kept whose Seq is above after, and waits for one if
	// there is none. The error is the context's, or alloc.ErrClosed when there will be no more.
	WaitMark(ctx context.Context, after int) (*snapshot.Mark, error)
	Dump() *snapshot.Dump
}

// inside reports whether a source shows the memory of this program.
func inside(s Source) bool {
	_, ok := s.(interface{ ClearCache() (alloc.Bytes, error) })
	return ok
}

// limit bounds how many requests of a kind are in work at a time.
type limit chan struct{}

func newLimit(n int) limit { return make(limit, n) }

// guard answers 503 while there are as many requests as may be.
func (l limit) guard(page http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !l.try() {
			refuse(w, errBusy)
			return
		}
		defer l.leave()
		page(w, r)
	}
}

// try enters if there is room. The caller leaves.
func (l limit) try() bool {
	select {
	case l <- struct{}{}:
		return true
	default:
		return false
	}
}

// enter waits until there is one request less, or ctx ends. The caller leaves.
func (l limit) enter(ctx context.Context) error {
	if l.try() {
		return nil
	}
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l limit) leave() { <-l }

func refuseMethod(w http.ResponseWriter, allowed, why string) {
	w.Header().Set("Allow", allowed)
	http.Error(w, why, http.StatusMethodNotAllowed)
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	for _, later := range []error{errBusy, errNothingYet, errNoSource, alloc.ErrClosed, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, later) {
			code = http.StatusServiceUnavailable
		}
	}
	if errors.Is(err, errBusy) {
		w.Header().Set("Retry-After", "5")
	}
	http.Error(w, err.Error(), code)
}

var (
	errBusy       = errors.New("too many requests of this kind are in work: try again in a few seconds")
	errNoSource   = errors.New("there is nothing to show: the program gave live.Handler a source that is nil")
	errNothingYet = errors.New("there is nothing to show yet: no memory was allocated")
)
