package trackertest

import (
	"errors"
	"slices"
	"strconv"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

var (
	dtypes = []alloc.DType{alloc.Float32, alloc.BFloat16, alloc.Int4}
	shapes = []alloc.Shape{
		{}, {0}, {7}, {64, 3, 3, 3}, {512, 512}, {1000}, {1 << 18}, {1<<18 + 1}, {10<<18 - 128}, {10 << 18}, {1 << 21}, {3, 1 << 22}, {1 << 26},
	}
)

// draw returns what to ask for.
func (w *worker) draw() snapshot.Allocation {
	a := snapshot.Allocation{Group: snapshot.Group{
		Kind: mem.Kinds()[w.rand.IntN(len(mem.Kinds()))], DType: dtypes[w.rand.IntN(len(dtypes))],
		Shape: slices.Clone(shapes[min(w.rand.IntN(len(shapes)), w.rand.IntN(len(shapes)), w.rand.IntN(len(shapes)))]),
	}}
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
	want.Ptr, want.Allocated, want.Memory = buf.Ptr(), buf.Allocation().Allocated, capability.MemoryOf(s.tr.Device())
	assert.GreaterOrEqual(w.world.t, buf.Allocation().Allocated, buf.Bytes())
	assert.LessOrEqual(w.world.t, buf.Allocation().Allocated-buf.Bytes(), alloc.MiB+512, "a cache wastes no more")
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

// lose forgets a buffer that was not freed.
func (w *worker) lose() {
	r := w.pick(func(r *record) bool {
		return r.isBuffer() && !r.stolen && (r.in.config.FindUnreachable || r.in.config.FreeUnreachable) && !r.in.closing.Load()
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

func (w *worker) label() {
	w.named++
	for _, r := range w.twins {
		r.want.Label = strconv.Itoa(w.named)
		r.buf.SetLabel(r.want.Label)
	}
	if r := w.pick((*record).isBuffer); r != nil {
		r.want.Label = []string{"", "layer1.0.conv1.weight", "a\nb\x1b[31m<script>\"", "no UTF-8: \xff\xfe"}[w.rand.IntN(4)]
		r.buf.SetLabel(r.want.Label)
		assert.Equal(w.world.t, r.want.Label, r.buf.Allocation().Label)
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
	if w.rand.IntN(2) == 0 {
		r.want.Memory = alloc.Memories()[w.rand.IntN(len(alloc.Memories()))]
		r.want.Label = r.want.Memory.String()
	}
	err := s.tr.Register(r.want.Ptr, r.want.Memory, r.want.Shape, r.want.DType, r.want.Kind)
	if err != nil {
		w.excuse(s, err)
		return
	}
	w.hold(s, r)
	if r.want.Label != "" {
		w.excuse(s, s.tr.SetLabel(r.want.Ptr, r.want.Label))
	}
	err = s.tr.Register(r.want.Ptr, alloc.DeviceMemory, r.want.Shape, r.want.DType, r.want.Kind)
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
	w.excuse(r.in, putBack())
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
	err := r.withdrawn.putBack()
	w.excuse(from, err)
	r.withdrawn = nil
	if err == nil && !from.closing.Load() {
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
