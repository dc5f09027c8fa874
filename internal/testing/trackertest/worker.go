package trackertest

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// worker is a goroutine that does random things, and what it holds.
type worker struct {
	world *world
	id    int
	rand  *rand.Rand
	work  chan func(*worker)
	held  []*record
	freed []*tracker.Buffer
	twins []*record // two buffers far apart, named by numbers that rise, one after the other
	named int
	open  []*section // that it opened and that are not ended
	in    []*place   // the innermost last
}

// record is device memory that a worker holds.
type record struct {
	pool      *pool               // that the memory is of
	in        *subject            // whose ledger has it; nil for none
	buf       *tracker.Buffer     // nil for memory of other code
	want      snapshot.Allocation // as a snapshot must show it, except what only the tracker knows
	withdrawn *withdrawn
	stolen    bool // other code freed the memory, which the tracker does not know
}

// withdrawn is memory whose Unregister may be undone.
type withdrawn struct {
	from    *subject
	during  *section
	putBack func() error
}

func (r *record) isBuffer() bool     { return r.buf != nil }
func (r *record) isRegistered() bool { return r.buf == nil && r.in != nil }
func (r *record) isOutside() bool    { return r.in == nil }

// operations are what a worker does, by weight.
var operations = []struct {
	name   string
	weight int
	do     func(*worker)
}{
	{"alloc", 24, (*worker).alloc},
	{"free", 22, (*worker).free},
	{"free twice", 2, (*worker).freeTwice},
	{"impossible requests", 1, (*worker).impossible},
	{"take", 6, (*worker).take},
	{"give", 4, (*worker).give},
	{"register", 8, (*worker).register},
	{"unregister", 3, (*worker).unregister},
	{"release", 5, (*worker).release},
	{"withdraw", 3, (*worker).withdraw},
	{"put back", 3, (*worker).putBack},
	{"steal", 1, (*worker).steal},
	{"lose", 1, (*worker).lose},
	{"exchange", 5, (*worker).exchange},
	{"label", 4, (*worker).label},
	{"begin", 5, (*worker).begin},
	{"part", 3, (*worker).part},
	{"bind", 2, (*worker).bind},
	{"end", 7, (*worker).end},
	{"track", 4, func(w *worker) { w.subject().track() }},
	{"look", 2, (*worker).look},
	{"read", 1, (*worker).read},
	{"clear cache", 2, (*worker).clearCache},
}

// run does what the world sends.
func (w *worker) run() {
	for f := range w.work {
		func() {
			defer w.world.busy.Done()
			defer func() {
				if r := recover(); r != nil {
					assert.Fail(w.world.t, "panic", "%v\n%s", r, debug.Stack())
				}
			}()
			f(w)
		}()
	}
}

// step does one random thing, sometimes with a device that fails.
func (w *worker) step() {
	if w.rand.IntN(10) == 0 {
		w.world.arm(w.rand)
	}
	sum := 0
	for _, op := range operations {
		sum += op.weight
	}
	n, i := w.rand.IntN(sum), 0
	for n >= operations[i].weight {
		n -= operations[i].weight
		i++
	}
	if w.world.turns {
		w.world.trace = append(w.world.trace, fmt.Sprint(w.id, " ", operations[i].name))
		defer w.world.device.heal()
	}
	operations[i].do(w)
}

func (w *worker) subject() *subject { return w.world.subjects[w.rand.IntN(len(w.world.subjects))] }

// pick returns a random record that it holds of a sort, or nil.
func (w *worker) pick(sort func(*record) bool) *record {
	if len(w.held) == 0 {
		return nil
	}
	from := w.rand.IntN(len(w.held))
	for i := range w.held {
		if r := w.held[(from+i)%len(w.held)]; sort(r) && !slices.Contains(w.twins, r) {
			return r
		}
	}
	return nil
}

func (w *worker) drop(r *record) {
	w.held = slices.DeleteFunc(w.held, func(h *record) bool { return h == r })
}

// excuse fails the test unless an error has a reason.
func (w *worker) excuse(s *subject, err error) {
	switch {
	case err == nil, w.world.device.failing.Load(), errors.Is(err, alloc.ErrOutOfMemory):
	case s != nil && s.closing.Load() && isAny(err, alloc.ErrClosed, alloc.ErrUnknownPtr, tracker.ErrDuplicatePtr):
	case w.world.rogue && errors.Is(err, tracker.ErrDuplicatePtr):
	default:
		assert.NoError(w.world.t, err)
	}
}

func isAny(err error, of ...error) bool {
	return slices.ContainsFunc(of, func(e error) bool { return errors.Is(err, e) })
}

// exchange hands a record to other goroutines, and takes one of theirs.
func (w *worker) exchange() {
	w.world.mu.Lock()
	defer w.world.mu.Unlock()
	if n := len(w.world.shared); n > 0 && w.rand.IntN(2) == 0 {
		w.held = append(w.held, w.world.shared[n-1])
		w.world.shared = w.world.shared[:n-1]
	} else if r := w.pick(func(r *record) bool { return r.withdrawn == nil }); r != nil {
		w.drop(r)
		w.world.shared = append(w.world.shared, r)
	}
}

// impossible asks for what cannot be. Nothing may change.
func (w *worker) impossible() {
	s, t := w.subject(), w.world.t
	for _, x := range []snapshot.Group{
		{Shape: alloc.Shape{-1}, DType: alloc.Float32}, {Shape: alloc.Shape{math.MaxInt, math.MaxInt, math.MaxInt}, DType: alloc.Float32},
		{Shape: alloc.Shape{1}, DType: 99}, {Shape: alloc.Shape{1}, DType: alloc.Float32, Kind: "a\nb"},
	} {
		_, err := s.tr.Alloc(x.Shape, x.DType, x.Kind)
		assert.Error(t, err)
		assert.Error(t, s.tr.Register(512, alloc.DeviceMemory, x.Shape, x.DType, x.Kind))
	}
	assert.Error(t, s.tr.Register(512, 99, alloc.Shape{1}, alloc.Uint8, tracker.Input))
	_, err := s.tr.AllocBytes(-1, tracker.Input)
	assert.Error(t, err)
	assert.ErrorIs(t, s.tr.Register(0, alloc.DeviceMemory, alloc.Shape{1}, alloc.Uint8, tracker.Input), alloc.ErrUnknownPtr)
	assert.NoError(t, (*tracker.Buffer)(nil).Free())
	addresses := []alloc.Ptr{0, 1, 1<<64 - 1}
	if r := w.pick((*record).isBuffer); r != nil {
		_, err := r.in.tr.Unregister(r.want.Ptr)
		assert.ErrorIs(t, err, alloc.ErrUnknownPtr, "Free frees it")
		addresses = append(addresses, r.want.Ptr+1)
	}
	for _, p := range addresses {
		_, err := s.tr.Unregister(p)
		assert.ErrorIs(t, err, alloc.ErrUnknownPtr)
		if s.pool.cache != nil {
			assert.ErrorIs(t, s.pool.cache.Free(p), alloc.ErrUnknownPtr)
		}
	}
}

func (w *worker) look() {
	if s := w.subject(); !s.hasSeen() {
		s.look(w.rand.IntN(3) == 0, w.rand.IntN(20) == 0)
	}
}

// read asks for all that can be read. What it says is compared elsewhere.
func (w *worker) read() {
	s := w.subject()
	s.tr.Leaks()
	leaks.Growing(s.tr.Snapshot())
	s.tr.Profile()
	if d := s.tr.Dump(); w.rand.IntN(8) == 0 { // encoding it takes longer than all else
		assert.NoError(w.world.t, d.WriteJSON(io.Discard))
	}
}

func (w *worker) clearCache() {
	s := w.subject()
	before := s.pool.reserved()
	returned, err := s.tr.ClearCache()
	w.excuse(s, err)
	if w.world.turns && !w.world.nosy {
		assert.Equal(w.world.t, before-returned, s.pool.reserved())
	}
}

// leaveAll frees all that the worker holds.
func (w *worker) leaveAll() {
	for len(w.open) > 0 {
		w.close(w.open[0])
	}
	for _, r := range w.held {
		switch t := w.world.t; {
		case r.stolen:
			given := w.world.device.has(r.want.Ptr) // again, to an Alloc that found it live
			if r.buf.Free() != nil {
				continue
			}
			assert.True(t, given)
			r.stolen = false
		case r.isBuffer():
			assert.NoError(t, r.buf.Free())
			r.in.frees.Add(1)
			r.pool.gave(r.want.Requested)
		case r.isRegistered() && !r.in.closing.Load():
			_, err := r.in.tr.Unregister(r.want.Ptr)
			assert.NoError(t, err)
			assert.NoError(t, w.giveBack(r))
		default:
			assert.NoError(t, w.giveBack(r))
		}
		r.in = nil
	}
	w.held = slices.DeleteFunc(w.held, func(r *record) bool { return !r.stolen })
}
