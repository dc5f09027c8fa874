package trackertest

import (
	"errors"
	"flag"
	"maps"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

var (
	// Long is for other random tests too.
	Long = flag.Bool("long", false, "run many more random programs: ten million operations")
	seed = flag.Uint64("seed", 0, "run only the random program of this seed")
)

// quiet is a test without Helper, which takes most of the time that a comparison does.
type quiet struct{ test *testing.T }

func (q *quiet) Errorf(format string, args ...any) { q.test.Errorf(format, args...) }
func (q *quiet) FailNow()                          { q.test.FailNow() }

// world is a random program: a device that fails, trackers over it, and goroutines that
// use them.
type world struct {
	t        *quiet
	rand     *rand.Rand
	device   *device
	subjects []*subject
	pools    []*pool // that other code takes memory of
	workers  []*worker
	busy     sync.WaitGroup

	turns  bool // the goroutines take turns
	rogue  bool // other code frees the tracker's memory, and the driver is broken
	nosy   bool // callbacks ask the tracker
	asking atomic.Bool
	checks int
	trace  []string // what was done in turns

	mu     sync.Mutex
	shared []*record // what any worker may take
}

func newWorld(t *testing.T, seed uint64, rig Rig) *world {
	r := rand.New(rand.NewPCG(seed, 0))
	w := &world{t: &quiet{t}, rand: r, turns: seed%2 == 0, nosy: r.IntN(4) == 0}
	w.device = &device{Device: rig.Device, rig: rig, live: make(map[alloc.Ptr]alloc.Bytes), unfreed: make(map[alloc.Ptr]bool)}
	t.Cleanup(func() { w.cleanUp(seed) })
	goroutines := 3
	if !w.turns {
		goroutines = []int{1, 2, 8, 64}[r.IntN(4)]
	}
	for i := range goroutines {
		k := &worker{world: w, id: i, rand: rand.New(rand.NewPCG(seed, uint64(i+1))), work: make(chan func(*worker))}
		w.workers = append(w.workers, k)
		go k.run()
	}
	w.addSubjects()
	return w
}

// addSubjects makes the trackers: each with a cache of its own, all with one, or all with none.
func (w *world) addSubjects() {
	bare := &pool{device: w.device}
	w.pools = []*pool{bare}
	trackers, caching := 1+w.rand.IntN(3), w.rand.IntN(3)
	w.rogue = w.turns && trackers == 1 && w.rand.IntN(2) == 0 // allocators cannot know of each other
	w.nosy = w.nosy && !w.rogue                               // what a callback takes might be what was stolen
	from := bare
	if caching == 0 {
		from = &pool{device: w.device, cache: cachetest.NewCache(w.t, w.device, cache.Config{})}
		w.pools = append(w.pools, from)
	}
	for range trackers {
		s := newSubject(w, from, caching == 1)
		if s.owns {
			s.pool = &pool{device: w.device, cache: s.tr.Device().(*cache.Cache)}
		}
		if !w.turns {
			s.whole = s.newSection(nil, "whole")
			s.whole.Section, s.whole.common = s.tr.Section("whole"), true
		}
		w.subjects = append(w.subjects, s)
	}
	if !w.turns && w.rand.IntN(3) == 0 {
		w.all((*worker).fill)
	}
}

// arm sets something to fail.
func (w *world) arm(r *rand.Rand) {
	below := givesZero
	if w.rogue {
		if below = givesInside; w.subjects[0].pool.cache != nil {
			below = faults
		}
	}
	w.device.arm(r, below)
}

// closed reports whether a tracker is.
func (w *world) closed() bool {
	return slices.ContainsFunc(w.subjects, func(s *subject) bool { return s.closing.Load() })
}

// round has one worker do one thing, or all do many at once. It returns how many
// operations that was.
func (w *world) round() int {
	if w.turns {
		w.send((*worker).step, w.workers[w.rand.IntN(len(w.workers))])
		return 1
	}
	n := 1000
	if *Long {
		n = 5000
	}
	n = n/len(w.workers) + 1
	closing := w.closing()
	w.all(func(k *worker) {
		for i := range n {
			if k.id == 0 && i == n/2 && closing != nil {
				closing.close()
			}
			k.step()
		}
	})
	return n * len(w.workers)
}

// between does what none may do at the same time.
func (w *world) between() {
	for _, s := range w.subjects {
		if w.rand.IntN(20) == 0 && !s.closing.Load() {
			s.tr.ResetPeak()
			s.replay.resetPeak()
			s.pool.resetPeak()
		}
	}
	if s := w.closing(); w.turns && w.rand.IntN(100) == 0 && s != nil {
		s.close()
	}
}

// closing returns a tracker to be closed while it is in use, now and then.
func (w *world) closing() *subject {
	s := w.subjects[w.rand.IntN(len(w.subjects))]
	if w.rand.IntN(8) != 0 || s.closing.Load() {
		return nil
	}
	return s
}

// all has each worker do f, at once.
func (w *world) all(f func(*worker)) { w.send(f, w.workers...) }

// send has workers do f.
func (w *world) send(f func(*worker), workers ...*worker) {
	done := make(chan struct{})
	w.busy.Add(len(workers))
	for _, k := range workers {
		k.work <- f
	}
	go func() {
		w.busy.Wait()
		close(done)
	}()
	w.await(done)
	if w.t.test.Failed() {
		w.t.FailNow()
	}
}

// await waits for the workers. One that does not return is stuck, for example at a lock that is held while a
// callback runs: then await prints all goroutines.
func (w *world) await(done <-chan struct{}) {
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		debug.SetTraceback("all")
		panic(w.t.test.Name() + " is stuck")
	}
}

// callback asks a tracker from a callback of its own, which may be anywhere in it.
func (w *world) callback(s *subject) {
	if !w.nosy || s.tr == nil || !w.asking.CompareAndSwap(false, true) {
		return
	}
	defer w.asking.Store(false)
	s.track()
	done := make(chan struct{})
	go func() { // this goroutine may be in a section
		defer close(done)
		s.look(true, false)
		buf, err := s.tr.AllocBytes(100, tracker.Temporary)
		if errors.Is(err, alloc.ErrOutOfMemory) {
			s.outOfMemory()
		}
		for buf.Free() != nil { // a fault happens once
			runtime.Gosched()
		}
	}()
	w.await(done)
}

// held returns everything that is held of device memory.
func (w *world) held() []*record {
	held := slices.Clone(w.shared)
	for _, k := range w.workers {
		held = append(held, k.held...)
	}
	for _, s := range w.subjects {
		held = append(held, s.lost...)
	}
	return held
}

// holds reports whether a worker holds an address.
func (w *world) holds(p *pool, ptr alloc.Ptr) bool {
	return slices.ContainsFunc(w.held(), func(r *record) bool { return r.pool == p && r.want.Ptr == ptr })
}

// check compares everything, from the ledgers down to what the driver lists as live.
func (w *world) check() {
	// All of it takes long: where goroutines take turns, only now and then, unless one
	// program is to be run again.
	thorough := !w.turns || *seed != 0 || w.checks%10 == 0
	w.checks++
	// While both sides of a comparison are read, no callback may allocate. The goroutine that finds
	// unreachable buffers may be in a callback now: wait for it.
	for !w.asking.CompareAndSwap(false, true) {
		runtime.Gosched()
	}
	defer w.asking.Store(false)
	w.device.heal()
	for _, s := range w.subjects {
		s.waitCollected()
	}
	records := make(map[*subject]map[alloc.Ptr]*record)
	memory := make(map[*pool]map[alloc.Ptr]alloc.Bytes)
	for _, s := range w.subjects {
		records[s] = make(map[alloc.Ptr]*record)
	}
	pools := w.pools
	for _, s := range w.subjects {
		if s.owns {
			pools = append(pools, s.pool)
		}
	}
	for _, p := range pools {
		memory[p] = make(map[alloc.Ptr]alloc.Bytes)
	}
	for _, r := range w.held() {
		if r.in != nil {
			records[r.in][r.want.Ptr] = r
		}
		if !r.stolen {
			memory[r.pool][r.want.Ptr] = r.want.Requested
		}
	}
	for _, s := range w.subjects {
		s.check(records[s], thorough)
	}
	if !thorough {
		return
	}
	// Others take what nobody counts: callbacks, and Allocs that find the ledger against them.
	counted := !w.nosy && !w.rogue && (w.turns || !w.closed())
	listed := make(map[alloc.Ptr]alloc.Bytes)
	for _, p := range pools {
		maps.Copy(listed, p.check(w.t, memory[p], w.turns, counted))
	}
	live := maps.Clone(w.device.live)
	for _, r := range w.held() {
		if r.stolen { // it may be given again, and then is nobody's
			delete(live, r.want.Ptr)
		}
	}
	if w.closed() { // an Alloc that Close came before gives back what it got, which the driver may refuse
		for p := range w.device.unfreed {
			if _, held := listed[p]; !held {
				delete(live, p)
			}
		}
	}
	same(w.t, listed, live, "what the driver lists as live")
	if !w.rogue {
		require.Empty(w.t, w.device.bad)
	}
}

// finish frees everything and closes the trackers, in either order: nothing of them stays.
func (w *world) finish() {
	closeAll := func() {
		for _, s := range w.subjects {
			if !s.closing.Load() {
				s.close()
			}
		}
	}
	freeAll := func() {
		w.workers[0].held = append(w.workers[0].held, w.shared...)
		w.shared = nil
		if !w.turns {
			w.all((*worker).leaveAll)
		} else {
			for _, k := range w.workers {
				w.send((*worker).leaveAll, k)
				w.check()
			}
		}
		for _, s := range w.subjects {
			if s.whole != nil {
				w.workers[0].close(s.whole)
			}
		}
	}
	for _, s := range w.subjects {
		s.checkJSON()
	}
	if w.rand.IntN(2) == 0 {
		closeAll()
		freeAll()
	} else {
		freeAll()
		w.check()
		closeAll()
	}
	w.check()
}

// cleanUp ends the workers and leaves the device empty. Of a program that failed it says
// how to run it again.
func (w *world) cleanUp(seed uint64) {
	for _, k := range w.workers {
		close(k.work)
	}
	w.device.heal()
	for p := range w.device.live {
		assert.NoError(w.t, w.device.Device.Free(p))
	}
	if !w.t.test.Failed() {
		return
	}
	mode := ""
	if *Long {
		mode = " -long"
	}
	w.t.test.Logf("to run it again: go test -run '^%s$' -seed %d%s\nwhat led there: %s", strings.Split(w.t.test.Name(), "/")[0], seed, mode,
		strings.Join(w.trace[max(0, len(w.trace)-200):], ", "))
}
