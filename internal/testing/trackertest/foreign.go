package trackertest

import (
	"errors"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/stretchr/testify/assert"
)

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
