package cache_test

import (
	"flag"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
)

var long = flag.Bool("long", false, "run all programs of TestInterleavings through a cache that grows, too")

// TestInterleavings runs all programs of two threads with four operations together, on two streams, in every order in
// which the threads can come to the device and to their operations. They begin with no buffer, or with one that work on
// three streams uses.
func TestInterleavings(t *testing.T) {
	operations := []operation{
		{"alloc 1", func(p *interleaved) { p.alloc(1) }},
		{"alloc 2", func(p *interleaved) { p.alloc(2) }},
		{"use on 1", func(p *interleaved) { p.use(1) }},
		{"use on 2", func(p *interleaved) { p.use(2) }},
		{"free", (*interleaved).free},
		{"trim", (*interleaved).trim},
		{"time", func(p *interleaved) { p.dev.Advance(22) }},
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	n := len(operations)
	for _, cfg := range []cache.Config{{}, {ExpandableSegments: true}} {
		step := 1
		switch {
		case cachetest.RaceDetector:
			step = 37
		case testing.Short():
			step = 137
		case cfg.ExpandableSegments && !*long:
			step = 11
		}
		programs, orders := 0, 0
		for i := 0; i < 2*3*n*n*n*n; i += step {
			used, first, i := i%2 == 1, i/2%3, i/6 // first is how many operations the first thread has
			four := []operation{operations[i/(n*n*n)], operations[i/(n*n)%n], operations[i/n%n], operations[i%n]}
			if first == 2 && i%(n*n) < i/(n*n) {
				continue // the same with the threads the other way round
			}
			programs++
			for choices := []choice(nil); ; {
				taken, err := runInterleaved(cfg, used, four[:first], four[first:], choices)
				orders++
				if err != nil {
					t.Fatalf("%v beside %v, in the order %v: %v", four[:first], four[first:], taken, err)
				}
				if choices = nextOrder(taken); choices == nil {
					break
				}
			}
		}
		t.Logf("expandable segments %v: %d programs in %d orders", cfg.ExpandableSegments, programs, orders)
	}
}

type operation struct {
	name string
	do   func(*interleaved)
}

func (o operation) String() string { return o.name }

// interleaved is a program of two threads that is running. Only one of them runs at a time, unless the cache's own locks
// wake the other.
type interleaved struct {
	*scheduler
	dev   cachetest.Device
	cache *cache.Cache

	mu   sync.Mutex
	uses *cachetest.Uses
	live []alloc.Ptr
	errs faults
}

const interleavedSize = 12 * alloc.MiB // a segment

// runInterleaved runs a program once, in an order that begins with the choices, and returns those that it took.
func runInterleaved(cfg cache.Config, used bool, one, two []operation, choices []choice) (taken []choice, err error) {
	p := &interleaved{scheduler: &scheduler{order: choices, threads: make(map[uint64]*thread), paused: make(chan *thread, 2)}}
	p.dev, err = cachetest.NewDevice(sim.Config{Memory: 30 * alloc.MiB, Overhead: -1, CheckReuse: true})
	require.NoError(&p.errs, err)
	p.uses = cachetest.NewUses(cachetest.Simulated{Device: p.dev})
	p.cache = cachetest.NewCache(&p.errs, scheduled{p.dev, p.scheduler}, cfg)
	if used {
		p.alloc(1)
		p.use(2)
		p.use(3)
	}
	err = p.run(func() { p.thread(one) }, func() { p.thread(two) })
	if err == nil {
		p.end()
		err = p.errs.err
	}
	return p.order[:p.at], err
}

func (p *interleaved) thread(operations []operation) {
	for _, o := range operations {
		p.yield()
		o.do(p)
	}
}

func (p *interleaved) alloc(on alloc.Stream) {
	at, n, err := p.cache.AllocOn(interleavedSize, on)
	if err != nil {
		assert.ErrorIs(&p.errs, err, alloc.ErrOutOfMemory)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.uses.HandedOut(&p.errs, on, at, n)
	p.uses.Queue(&p.errs, on, at, n, 10)
	p.live = append(p.live, at)
}

// take takes a live buffer away from the other thread, as programs must that use or free one.
func (p *interleaved) take() (at alloc.Ptr, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.live) == 0 {
		return 0, false
	}
	at, p.live = p.live[0], p.live[1:]
	return at, true
}

func (p *interleaved) use(on alloc.Stream) {
	at, ok := p.take()
	if !ok {
		return
	}
	assert.NoError(&p.errs, p.cache.RecordStream(at, on))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.uses.Queue(&p.errs, on, at, interleavedSize, 10*time.Duration(on))
	p.live = append(p.live, at)
}

func (p *interleaved) free() {
	if at, ok := p.take(); ok {
		assert.NoError(&p.errs, p.cache.Free(at))
	}
}

func (p *interleaved) trim() {
	_, err := p.cache.Trim()
	assert.NoError(&p.errs, err)
}

// end frees all: when all work is done nothing is pending, and the device gets everything back.
func (p *interleaved) end() {
	for len(p.live) > 0 {
		p.free()
	}
	p.dev.Advance(max(0, p.uses.Last()-p.dev.Advance(0)))
	p.cache.Locked().Poll()
	s := p.cache.Stats()
	assert.Zero(&p.errs, s.Pending.Bytes.Current)
	assert.Equal(&p.errs, s.Reserved.Bytes.Current, s.Inactive.Bytes.Current)
	p.trim()
	assert.Zero(&p.errs, p.cache.Stats().Reserved.Bytes.Current)
	cachetest.Invariants(&p.errs, p.cache)
	assert.NoError(&p.errs, p.cache.Close())
	assert.NoError(&p.errs, p.dev.Err())
	assert.NoError(&p.errs, p.dev.Close())
}

// faults keeps the first failure of a program, on whichever thread. The program goes on to its end.
type faults struct {
	mu  sync.Mutex
	err error
}

func (f *faults) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = fmt.Errorf(format, args...)
	}
}

func (f *faults) FailNow() {}

// choice is which of so many threads went on.
type choice struct{ took, of int }

// nextOrder returns the choices that lead to the next order, depth first; nil after the last.
func nextOrder(taken []choice) []choice {
	for i, c := range slices.Backward(taken) {
		if c.took+1 < c.of {
			return append(slices.Clone(taken[:i]), choice{c.took + 1, c.of})
		}
	}
	return nil
}

// scheduler lets one of its threads run from one yield to the next. A thread that waits for a lock of the cache, which
// the other holds, is left alone until it comes to its next yield.
type scheduler struct {
	order []choice
	at    int

	mu      sync.Mutex
	threads map[uint64]*thread // by goroutine
	paused  chan *thread       // yields, or has ended
}

type thread struct {
	number  int
	proceed chan struct{}
	ended   bool
}

// yield has the scheduler choose which goroutine goes on. Outside of run it does nothing.
func (s *scheduler) yield() {
	s.mu.Lock()
	t := s.threads[callstack.Goroutine()]
	s.mu.Unlock()
	if t != nil {
		s.paused <- t
		<-t.proceed
	}
}

func (s *scheduler) run(bodies ...func()) error {
	for i, body := range bodies {
		t := &thread{number: i, proceed: make(chan struct{})}
		go func() {
			s.mu.Lock()
			s.threads[callstack.Goroutine()] = t
			s.mu.Unlock()
			body()
			t.ended = true
			s.paused <- t
		}()
	}
	var ready []*thread
	for running, ended := len(bodies), 0; ended < len(bodies); {
		for running > 0 {
			t := s.next(len(ready) > 0)
			if t == nil {
				break // the others wait for locks
			}
			running--
			if t.ended {
				ended++
			} else {
				ready = append(ready, t)
			}
		}
		slices.SortFunc(ready, func(a, b *thread) int { return a.number - b.number })
		if len(ready) == 0 {
			if ended == len(bodies) {
				break
			}
			return fmt.Errorf("all threads wait for each other")
		}
		i := s.choose(len(ready))
		t := ready[i]
		ready = slices.Delete(ready, i, i+1)
		running++
		t.proceed <- struct{}{}
	}
	return nil
}

// next returns the next thread that yields or ends; nil if those that run wait for locks, and others can go on. There is one
// processor, so that whoever runs has come as far as it can when the scheduler is asked again. Should the system have stopped it
// before, it runs on beside the next, which is a legal order too.
func (s *scheduler) next(others bool) *thread {
	const patience = time.Minute // only a deadlock takes so long
	for begin := time.Now(); ; {
		for range 4 {
			select {
			case t := <-s.paused:
				return t
			default:
				runtime.Gosched()
			}
		}
		if others || time.Since(begin) > patience {
			return nil
		}
	}
}

// choose takes the next choice of the order; behind its end, the first thread.
func (s *scheduler) choose(of int) int {
	if s.at == len(s.order) {
		s.order = append(s.order, choice{})
	}
	c := &s.order[s.at]
	c.took, c.of = min(c.took, of-1), of
	s.at++
	return c.took
}

// scheduled is a device at whose calls threads yield.
type scheduled struct {
	cachetest.Device
	*scheduler
}

func (d scheduled) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	d.yield()
	return d.Device.Alloc(n)
}

func (d scheduled) Free(p alloc.Ptr) error {
	d.yield()
	return d.Device.Free(p)
}

func (d scheduled) Map(p alloc.Ptr, n alloc.Bytes) error {
	d.yield()
	return d.Device.Map(p, n)
}

func (d scheduled) Unmap(p alloc.Ptr, n alloc.Bytes) error {
	d.yield()
	return d.Device.Unmap(p, n)
}

func (d scheduled) RecordEvent(s alloc.Stream) (capability.Event, error) {
	d.yield()
	e, err := d.Device.RecordEvent(s)
	return scheduledEvent{e, d.scheduler}, err
}

type scheduledEvent struct {
	capability.Event
	*scheduler
}

func (e scheduledEvent) Done() (bool, error) {
	e.yield()
	return e.Event.Done()
}

func (e scheduledEvent) Wait() error {
	e.yield()
	return e.Event.Wait()
}
