package trackertest

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strconv"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/ability"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
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
	open  []*section // that it opened and nobody ended
	in    []*place   // the innermost last
}

// record is device memory that somebody holds.
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

var (
	dtypes = []alloc.DType{alloc.Float32, alloc.BFloat16, alloc.Int4}
	shapes = []alloc.Shape{
		{}, {0}, {7}, {64, 3, 3, 3}, {512, 512}, {1000}, {1 << 18}, {1<<18 + 1}, {10<<18 - 128}, {10 << 18}, {1 << 21}, {3, 1 << 22}, {1 << 26},
	}
)

// draw returns what to ask for.
func (w *worker) draw() snapshot.Allocation {
	a := snapshot.Allocation{
		Kind: mem.Kinds()[w.rand.IntN(len(mem.Kinds()))], DType: dtypes[w.rand.IntN(len(dtypes))],
		Shape: slices.Clone(shapes[min(w.rand.IntN(len(shapes)), w.rand.IntN(len(shapes)), w.rand.IntN(len(shapes)))]),
	}
	if w.rand.IntN(20) == 0 { // a shape that was never there
		a.Shape = alloc.Shape{w.rand.IntN(1 << 16)}
	}
	a.Requested, _ = a.Shape.Bytes(a.DType)
	return a
}

func (w *worker) alloc() {
	w.allocOne(w.subject(), w.draw())
}

// fill takes much: a snapshot of it takes its time.
func (w *worker) fill() {
	n := 4000
	if *Long {
		n = 20_000
	}
	for range n / len(w.world.workers) {
		if want := w.draw(); want.Requested < 8*alloc.KiB {
			w.allocOne(w.subject(), want)
		}
	}
	if n := len(w.held); n > 1 && w.held[0].in == w.held[n-1].in {
		w.twins = []*record{w.held[0], w.held[n-1]}
	}
}

func (w *worker) allocOne(s *subject, want snapshot.Allocation) {
	var buf *tracker.Buffer
	var err error
	switch w.rand.IntN(4) {
	case 0:
		want.Shape, want.DType = alloc.Shape{int(want.Requested)}, alloc.Uint8
		buf, err = s.tr.AllocBytes(want.Requested, want.Kind)
	case 1:
		want.DType = alloc.Float32
		want.Requested, _ = want.Shape.Bytes(want.DType)
		buf, err = tracker.Make[float32](s.tr, want.Shape, want.Kind)
	default:
		shape := slices.Clone(want.Shape)
		buf, err = s.tr.Alloc(shape, want.DType, want.Kind)
		for i := range shape {
			shape[i] = -1 // it was copied
		}
	}
	if err != nil {
		w.refused(s, want, err)
		return
	}
	want.Ptr, want.Allocated, want.Memory = buf.Ptr(), buf.Allocated(), ability.MemoryOf(s.tr.Device())
	assert.GreaterOrEqual(w.world.t, buf.Allocated(), buf.Bytes())
	assert.LessOrEqual(w.world.t, buf.Allocated()-buf.Bytes(), alloc.MiB+512, "a cache wastes no more")
	s.pool.asked(want.Requested, nil)
	w.hold(s, &record{pool: s.pool, buf: buf, want: want})
}

// refused checks the error of an Alloc.
func (w *worker) refused(s *subject, want snapshot.Allocation, err error) {
	w.excuse(s, err)
	if !errors.Is(err, alloc.ErrOutOfMemory) {
		return
	}
	s.pool.asked(want.Requested, err)
	s.outOfMemory()
	var oom *tracker.OutOfMemoryError
	if assert.ErrorAs(w.world.t, err, &oom) && !s.closing.Load() {
		assert.Equal(w.world.t, want.Requested, oom.Requested)
		assert.Equal(w.world.t, want.Shape, oom.Shape)
		assert.Equal(w.world.t, w.innermost(s).pathName(), oom.Section)
	}
}

// hold takes a record in that has just entered a ledger.
func (w *worker) hold(s *subject, r *record) {
	r.in, r.want.Section, r.want.Registered = s, w.innermost(s).pathName(), r.buf == nil
	w.count(s, allocated, 1, r.want)
	if !slices.Contains(w.held, r) {
		w.held = append(w.held, r)
	}
}

// free frees a buffer: sometimes two goroutines do, and one must fail.
func (w *worker) free() {
	r := w.pick((*record).isBuffer)
	if r == nil {
		return
	}
	given := r.stolen && w.world.device.has(r.want.Ptr)
	var rival chan error
	if w.rand.IntN(8) == 0 && w.innermost(r.in) == nil {
		rival = make(chan error)
		go func() { rival <- r.buf.Free() }()
	}
	err := r.buf.Free()
	if rival != nil {
		other := <-rival
		assert.True(w.world.t, err != nil || other != nil, "both freed it")
		if err != nil && !errors.Is(other, alloc.ErrDoubleFree) {
			err = other
		}
	}
	switch {
	case r.stolen && !given:
		assert.Error(w.world.t, err)
	case err != nil:
		w.excuse(nil, err)
	default:
		r.in.frees.Add(1)
		w.freed = append(w.freed[max(0, len(w.freed)-20):], r.buf)
		r.pool.gave(r.want.Requested)
		w.out(r)
		w.drop(r)
	}
}

// out counts a record out of its ledger.
func (w *worker) out(r *record) {
	w.count(r.in, freed, 1, r.want)
	r.in = nil
}

func (w *worker) freeTwice() {
	if n := len(w.freed); n > 0 {
		assert.ErrorIs(w.world.t, w.freed[w.rand.IntN(n)].Free(), alloc.ErrDoubleFree)
	}
}

// impossible asks for what cannot be. Nothing may change.
func (w *worker) impossible() {
	s, t := w.subject(), w.world.t
	for _, x := range []snapshot.Allocation{
		{Shape: alloc.Shape{-1}, DType: alloc.Float32}, {Shape: alloc.Shape{math.MaxInt, math.MaxInt, math.MaxInt}, DType: alloc.Float32},
		{Shape: alloc.Shape{1}, DType: 99}, {Shape: alloc.Shape{1}, DType: alloc.Float32, Kind: "a\nb"},
	} {
		_, err := s.tr.Alloc(x.Shape, x.DType, x.Kind)
		assert.Error(t, err)
		assert.Error(t, s.tr.Register(512, x.Shape, x.DType, x.Kind))
	}
	assert.Error(t, s.tr.Register(512, alloc.Shape{1}, alloc.Uint8, tracker.Input, tracker.InMemory(99)))
	_, err := s.tr.AllocBytes(-1, tracker.Input)
	assert.Error(t, err)
	assert.ErrorIs(t, s.tr.Register(0, alloc.Shape{1}, alloc.Uint8, tracker.Input), alloc.ErrUnknownPtr)
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

// take is other code that takes memory of the device, or of a cache.
func (w *worker) take() {
	if w.world.rogue { // it might be what was stolen, which a Free then frees
		return
	}
	from, want := w.world.pools[w.rand.IntN(len(w.world.pools))], w.draw()
	p, err := from.take(want.Requested)
	if err != nil {
		w.excuse(nil, err)
		return
	}
	want.Ptr, want.Allocated = p, want.Requested
	w.held = append(w.held, &record{pool: from, want: want})
}

// give is other code that gives its memory back.
func (w *worker) give() {
	if r := w.pick((*record).isOutside); r != nil && w.giveBack(r) == nil {
		w.drop(r)
	}
}

func (w *worker) giveBack(r *record) error {
	err := r.pool.give(r.want.Ptr, r.want.Requested)
	w.excuse(nil, err)
	return err
}

func (w *worker) register() {
	s, r := w.subject(), w.pick(func(r *record) bool { return r.isOutside() && r.withdrawn == nil })
	if r == nil {
		return
	}
	r.want.Memory, r.want.Label = alloc.DeviceMemory, ""
	var opts []tracker.RegisterOption
	if w.rand.IntN(2) == 0 {
		r.want.Memory = alloc.Memories()[w.rand.IntN(len(alloc.Memories()))]
		r.want.Label = r.want.Memory.String()
		opts = append(opts, tracker.InMemory(r.want.Memory), tracker.Labelled(r.want.Label))
	}
	err := s.tr.Register(r.want.Ptr, r.want.Shape, r.want.DType, r.want.Kind, opts...)
	if err != nil {
		w.excuse(s, err)
		return
	}
	w.hold(s, r)
	err = s.tr.Register(r.want.Ptr, r.want.Shape, r.want.DType, r.want.Kind)
	assert.True(w.world.t, errors.Is(err, tracker.ErrDuplicatePtr) || s.closing.Load(), "%v", err)
}

func (w *worker) unregister() {
	r := w.pick((*record).isRegistered)
	if r == nil {
		return
	}
	tr := r.in.tr
	_, err := tr.Unregister(r.want.Ptr)
	w.excuse(r.in, err)
	w.out(r) // which Close did, if not Unregister
	_, err = tr.Unregister(r.want.Ptr)
	assert.ErrorIs(w.world.t, err, alloc.ErrUnknownPtr)
}

// release releases memory, with a free that works or fails.
func (w *worker) release() {
	r := w.pick((*record).isRegistered)
	if r == nil {
		return
	}
	putBack, err := r.in.tr.Unregister(r.want.Ptr)
	if err != nil { // only a closed tracker says no
		w.excuse(r.in, err)
		w.out(r)
		return
	}
	refused := w.rand.IntN(2) == 1
	if !refused && w.giveBack(r) == nil {
		w.out(r)
		w.drop(r)
		return
	}
	assert.True(w.world.t, refused || w.world.device.failing.Load())
	assert.NoError(w.world.t, putBack())
}

func (w *worker) withdraw() {
	r := w.pick((*record).isRegistered)
	if r == nil {
		return
	}
	putBack, err := r.in.tr.Unregister(r.want.Ptr)
	w.excuse(r.in, err)
	if err == nil {
		r.withdrawn = &withdrawn{r.in, w.innermost(r.in), putBack}
	}
	w.out(r)
}

// putBack puts back what was withdrawn in the section where it is now.
func (w *worker) putBack() {
	r := w.pick(func(r *record) bool { return r.withdrawn != nil && r.withdrawn.during == w.innermost(r.withdrawn.from) })
	if r == nil {
		return
	}
	from := r.withdrawn.from
	assert.NoError(w.world.t, r.withdrawn.putBack())
	r.withdrawn = nil
	if !from.closing.Load() {
		r.in = from
		w.count(from, freed, -1, r.want)
	}
}

// steal is other code that frees a buffer's memory behind the tracker's back: a cache
// does not let it.
func (w *worker) steal() {
	r := w.pick(func(r *record) bool { return r.isBuffer() && !r.stolen })
	switch {
	case r == nil:
	case r.pool.cache != nil:
		assert.ErrorIs(w.world.t, r.pool.cache.Free(r.want.Ptr), cachelock.ErrOwned)
	case w.world.rogue && w.giveBack(r) == nil:
		r.stolen = true
	}
}

// lose forgets a buffer that was not freed.
func (w *worker) lose() {
	r := w.pick(func(r *record) bool {
		return r.isBuffer() && !r.stolen && r.in.config.Lost != tracker.IgnoreLost && !r.in.closing.Load()
	})
	if r == nil {
		return
	}
	w.drop(r)
	w.world.device.forgive(r.want.Ptr) // it is to be freed once more
	r.buf = nil
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	r.in.lost = append(r.in.lost, r)
	r.in.everLost++
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

func (w *worker) label() {
	w.named++
	for _, r := range w.twins {
		r.want.Label = strconv.Itoa(w.named)
		r.buf.SetLabel(r.want.Label)
	}
	if r := w.pick((*record).isBuffer); r != nil {
		r.want.Label = []string{"", "layer1.0.conv1.weight", "a\nb\x1b[31m<script>\"", "no UTF-8: \xff\xfe"}[w.rand.IntN(4)]
		r.buf.SetLabel(r.want.Label)
		assert.Equal(w.world.t, r.want.Label, r.buf.Label())
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
	s.tr.History()
	s.tr.Leaks()
	s.tr.Growth()
	s.tr.Profile()
	s.tr.Marks()
	w.excuse(s, s.tr.Dump(io.Discard, "oracle"))
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
