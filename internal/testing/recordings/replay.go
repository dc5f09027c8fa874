package recordings

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
)

// Result is what a replay came to.
type Result struct {
	Allocs      int    // requests, all of which got the recorded address
	DriverCalls int    // all of which were the recorded ones, at the recorded event
	Hash        string // of the driver calls: event, action, size and address from the first

	PeakRequested, PeakAllocated, PeakReserved alloc.Bytes
	Retries, OOMs                              int64
}

// Config is how a recording is replayed.
type Config struct {
	Cache cache.Config
	Total alloc.Bytes // the device's memory, which decides where expandable segments end
	// Retries says that memory which was given back just before a request was given back
	// for it, for lack of memory; else it was an empty_cache. A recording does not say.
	Retries bool
}

// Replay builds a state in a Cache and runs events through it, all of one device. It returns an error at the
// first event at which the cache differs from the recording: in an address, a driver call, requested or
// reserved bytes.
func Replay(cfg Config, before []Segment, events []Event) (*cache.Cache, Result, error) {
	r := &replay{dev: &device{total: cfg.Total}, hash: sha256.New(), retries: cfg.Retries, pending: make(map[alloc.Ptr]*event)}
	r.segmentAction = "segment_alloc"
	if cfg.Cache.ExpandableSegments {
		r.segmentAction = "segment_map"
	}
	var err error
	if r.cache, err = cache.New(r.dev, cfg.Cache); err != nil {
		return nil, Result{}, err
	}
	if err := r.build(before); err != nil {
		return nil, Result{}, fmt.Errorf("build the state before the first event: %w", err)
	}
	start := r.cache.Stats()
	r.requested, r.reserved = start.Requested.Bytes.Current, start.Reserved.Bytes.Current
	r.cache.ResetPeak()
	for i, e := range events {
		if e.Action == "free_requested" && (i+1 == len(events) || events[i+1] != completed(e)) {
			e.Action = "pending"
		}
		if err := r.event(i, e); err != nil {
			return r.cache, r.result, fmt.Errorf("event %d, %s of %v at %v: %w", i, e.Action, e.Size, e.Ptr, err)
		}
	}
	err = r.empty()
	r.pass()
	r.cache.Locked().Poll()
	if err != nil {
		return r.cache, r.result, fmt.Errorf("after the last event: %w", err)
	}
	stats := r.cache.Stats()
	r.result.Hash = fmt.Sprintf("%x", r.hash.Sum(nil)[:8])
	r.result.PeakRequested = stats.Requested.Bytes.Peak
	r.result.PeakAllocated = stats.Allocated.Bytes.Peak
	r.result.PeakReserved = stats.Reserved.Bytes.Peak
	r.result.Retries, r.result.OOMs = stats.Retries, stats.OOMs
	return r.cache, r.result, nil
}

// completed returns the event that completes a free, for a block that can be used again at once.
func completed(e Event) Event {
	e.Action = "free_completed"
	return e
}

type replay struct {
	dev    *device
	cache  *cache.Cache
	result Result
	hash   hash.Hash
	origin alloc.Ptr // the address of the first driver call

	segmentAction string // of the driver call that gives memory

	retries bool
	pending map[alloc.Ptr]*event // by block
	reached []*event             // that have not passed
	users   alloc.Stream

	requested, reserved alloc.Bytes
}

func (r *replay) event(i int, e Event) error {
	var err error
	switch e.Action {
	case "segment_alloc", "segment_free", "segment_map", "segment_unmap":
		r.call(i, e)
		return nil
	case "alloc":
		err = r.alloc(e)
	case "oom":
		r.dev.waiting = append(r.dev.waiting, call{action: e.Action})
		_, _, err = r.cache.AllocOn(e.Size, alloc.Stream(e.Stream))
		r.dev.waiting = r.dev.waiting[:len(r.dev.waiting)-1]
		if errors.Is(err, alloc.ErrOutOfMemory) {
			err = nil
		} else if err == nil {
			err = errors.New("the cache has the memory")
		}
	case "pending":
		if err = r.empty(); err == nil {
			err = r.suspend(e.Ptr)
		}
		r.requested -= e.Size
	case "free_completed":
		if r.complete(e.Ptr) {
			return nil
		}
		if err = r.empty(); err == nil {
			err = r.cache.Free(e.Ptr)
		}
		r.requested -= e.Size
	default:
		return nil
	}
	if r.dev.failed != nil {
		return r.dev.failed
	}
	if err != nil {
		return err
	}
	return r.check()
}

// call enters a driver call of the recording, which an event soon makes the cache do.
func (r *replay) call(i int, e Event) {
	if r.origin == 0 {
		r.origin = e.Ptr
	}
	r.dev.waiting = append(r.dev.waiting, call{e.Action, e.Ptr, e.Size})
	fmt.Fprintln(r.hash, i, e.Action, int64(e.Size), int64(e.Ptr-r.origin))
	r.result.DriverCalls++
	if (call{action: e.Action}).gives() {
		r.reserved -= e.Size
	} else {
		r.reserved += e.Size
	}
}

func (r *replay) alloc(e Event) error {
	if !r.retries {
		if err := r.empty(); err != nil {
			return err
		}
	}
	if len(r.dev.waiting) == 0 || !r.dev.waiting[0].gives() {
		r.pass()
	}
	r.dev.given = false
	p, _, err := r.cache.AllocOn(e.Size, alloc.Stream(e.Stream))
	if err != nil {
		return err
	}
	r.result.Allocs++
	r.requested += e.Size
	if p != e.Ptr {
		return fmt.Errorf("the cache gives %v", p)
	}
	return nil
}

// empty empties the cache if the recording gives segments back here.
func (r *replay) empty() error {
	if len(r.dev.waiting) == 0 || !r.dev.waiting[0].gives() {
		return nil
	}
	_, err := r.cache.Trim()
	return err
}

func (r *replay) check() error {
	stats := r.cache.Stats()
	switch {
	case len(r.dev.waiting) > 0:
		return fmt.Errorf("the cache leaves out driver calls: %s", describe(r.dev.waiting))
	case stats.Requested.Bytes.Current != r.requested:
		return fmt.Errorf("requested %v, recorded %v", stats.Requested.Bytes.Current, r.requested)
	case stats.Reserved.Bytes.Current != r.reserved:
		return fmt.Errorf("reserved %v, recorded %v", stats.Reserved.Bytes.Current, r.reserved)
	}
	return nil
}

// Held returns a cache's segments, as those of a private pool.
func Held(cache *cache.Cache, pool [2]int64) []Segment {
	var held []Segment
	for s := range cache.Segments() {
		segment := Segment{Ptr: s.Ptr, Size: s.Size, Small: s.Pool == "small", Stream: int64(s.Stream), Pool: pool}
		for _, b := range s.Blocks {
			segment.Blocks = append(segment.Blocks, Block{b.Ptr, b.Size, b.Requested, b.State != alloc.Inactive, b.State == alloc.Pending})
		}
		held = append(held, segment)
	}
	return held
}
