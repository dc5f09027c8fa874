package cuda

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

// Pool is a stream-ordered pool of the driver, as an alloc.Device. Memory is taken and freed in
// the order of a stream's work, and the driver keeps what is freed for the next request:
//
//	pool, err := dev.NewPool(cuda.PoolConfig{ReleaseThreshold: alloc.GiB})
//	defer pool.Close()
//	tr, err := tracker.New(tracker.Config{Device: pool, NoCache: true})
//	b, err := tr.AllocOn(stream, shape, alloc.Float32, tracker.Activation)
//
// A tracker over a pool has alloc.PoolMemory, and counts what the pool holds from the driver as
// reserved. Give it no cache: the pool is one.
//
// The methods may be called from any goroutine. After Close they are alloc.ErrClosed.
type Pool interface {
	alloc.StreamAllocator
	// Stats asks the driver how much of the pool callers use, and how much memory the pool holds.
	Stats() (used, reserved alloc.Bytes, err error)
	// SetReleaseThreshold changes PoolConfig.ReleaseThreshold. math.MaxInt64 keeps everything.
	SetReleaseThreshold(n alloc.Bytes) error
	// Trim gives free memory back to the driver until the pool holds at most keep bytes. Memory
	// that queued work still uses is not free: wait for the streams first.
	Trim(keep alloc.Bytes) error
	// Close gives a pool that NewPool made back to the driver. Free live allocations first: this
	// Pool cannot free them afterwards. Close pools before their Device.
	Close() error
}

// pool is a Pool.
type pool struct {
	dev  *gpu
	pool memPool
	own  bool

	mu     sync.RWMutex // held for reading during each call
	closed bool

	liveMu sync.Mutex
	live   map[alloc.Ptr]*pooled
}

// pooled is a live allocation: the stream on which it will be freed, and the other streams that use it.
type pooled struct {
	stream alloc.Stream
	others []alloc.Stream
}

var _ capability.ReservingDevice = (*pool)(nil)

// PoolConfig has the settings of a pool. The zero PoolConfig has the driver's defaults.
type PoolConfig struct {
	// ReleaseThreshold is how much free memory the pool keeps for reuse when the program waits for a stream, an
	// event or the context. The driver may take the rest back. 0 keeps nothing.
	ReleaseThreshold alloc.Bytes
	// MaxSize limits the size of the pool; 0 means that only the device's memory does. Drivers
	// before CUDA 12.2 have no such limit, and NewPool then fails.
	MaxSize alloc.Bytes
}

// do calls the driver unless the pool is closed.
func (p *pool) do(call func() error) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return alloc.ErrClosed
	}
	return p.dev.do(call)
}

// Memory returns alloc.PoolMemory.
func (p *pool) Memory() alloc.Memory { return alloc.PoolMemory }

// Name returns the device's product name.
func (p *pool) Name() string { return p.dev.Name() }

// Ordinal returns the device's index.
func (p *pool) Ordinal() int { return p.dev.Ordinal() }

// String names the device of the pool.
func (p *pool) String() string { return fmt.Sprintf("memory pool on %v", p.dev) }

// Unwrap returns the device; alloc.As finds its optional methods.
func (p *pool) Unwrap() alloc.Device { return p.dev }

// MemInfo is the device's. Free does not include what the pool keeps. Its errors are the same.
func (p *pool) MemInfo() (alloc.MemInfo, error) { return p.dev.MemInfo() }

// Alloc is AllocOn for the default stream. The errors are those of AllocOn.
func (p *pool) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	at, _, err := p.AllocOn(n, 0)
	return at, err
}

// AllocOn allocates n bytes by cuMemAllocFromPoolAsync: work that is queued on the stream from now on
// may use them, and Free frees them behind it. The errors are Device.Alloc's, and errors.ErrUnsupported for
// Device.StreamOfThread.
func (p *pool) AllocOn(n alloc.Bytes, s alloc.Stream) (alloc.Ptr, alloc.Bytes, error) {
	if n < 0 {
		return 0, 0, fmt.Errorf("%w of %d bytes: negative", alloc.ErrSize, n)
	}
	if s == perThread {
		return 0, 0, fmt.Errorf("alloc %v of %v: %w", n, p, capability.NoThreadStream(s))
	}
	var at uint64
	err := p.do(func() (err error) {
		at, err = p.dev.driver.allocFromPool(int64(max(n, 1)), p.pool, s)
		if err == nil { // before anybody can free it
			p.liveMu.Lock()
			defer p.liveMu.Unlock()
			p.live[alloc.Ptr(at)] = &pooled{stream: s}
		}
		return err
	})
	switch {
	case errors.Is(err, codeOutOfMemory), errors.Is(err, codeInvalidValue) && n > p.dev.info.Memory:
		return 0, 0, p.outOfMemory(n, err)
	case err != nil:
		return 0, 0, fmt.Errorf("alloc %v of %v: %w", n, p, mapped(err))
	}
	return alloc.Ptr(at), n, nil
}

// outOfMemory says what the pool holds too.
func (p *pool) outOfMemory(n alloc.Bytes, cause error) error {
	err := p.dev.outOfMemory(n, cause)
	oom, ok := errors.AsType[*alloc.OutOfMemoryError](err)
	if used, reserved, statsErr := p.Stats(); ok && statsErr == nil {
		oom.Reserved, oom.Allocated = reserved, used
	}
	return err
}

// RecordStream says that work on another stream uses the memory at an address too. Free makes
// the memory's own stream wait for the work that is queued there by then. The error is
// alloc.ErrUnknownPtr for an address that is not a live allocation's, and errors.ErrUnsupported for
// Device.StreamOfThread.
func (p *pool) RecordStream(at alloc.Ptr, s alloc.Stream) error {
	p.liveMu.Lock()
	defer p.liveMu.Unlock()
	its := p.live[at]
	switch {
	case its == nil:
		return fmt.Errorf("record stream %#x for %v of %v: %w", uint64(s), at, p, alloc.ErrUnknownPtr)
	case s == perThread:
		return fmt.Errorf("record a stream for %v of %v: %w", at, p, capability.NoThreadStream(s))
	case s != its.stream && !slices.Contains(its.others, s):
		its.others = append(its.others, s)
	}
	return nil
}

// Free frees memory with cuMemFreeAsync on the stream that it was allocated for. It does not wait. An
// address that is not live is alloc.ErrUnknownPtr.
func (p *pool) Free(at alloc.Ptr) error {
	p.liveMu.Lock()
	its := p.live[at]
	delete(p.live, at)
	p.liveMu.Unlock()
	err := error(codeInvalidValue)
	if its != nil {
		err = p.do(func() error { return p.freeInOrder(at, its) })
	}
	if err != nil && its != nil {
		p.liveMu.Lock()
		defer p.liveMu.Unlock()
		p.live[at] = its
	}
	if err != nil {
		return fmt.Errorf("free %v of %v: %w", at, p, mappedAddress(err))
	}
	return nil
}

func (p *pool) freeInOrder(at alloc.Ptr, its *pooled) error {
	for _, other := range its.others {
		if err := p.dev.waitFor(its.stream, other); err != nil {
			return fmt.Errorf("wait for stream %#x: %w", uint64(other), err)
		}
	}
	return p.dev.driver.freeToPool(uint64(at), its.stream)
}

// Close gives a pool that NewPool made back to the driver. Free live allocations first: this
// Pool cannot free them afterwards. Close pools before their Device. The error is the
// driver's; a second Close is alloc.ErrClosed.
func (p *pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := error(nil)
	switch {
	case p.closed:
		err = alloc.ErrClosed
	case p.own:
		err = p.dev.do(func() error { return p.dev.driver.destroyPool(p.pool) })
	}
	p.closed = true
	if err != nil {
		return fmt.Errorf("close %v: %w", p, mapped(err))
	}
	return nil
}

// Stats asks the driver how much of the pool callers use, and how much memory the pool holds. The
// error is alloc.ErrClosed, or the driver's.
func (p *pool) Stats() (used, reserved alloc.Bytes, err error) {
	err = p.do(func() error {
		for key, value := range map[int]*alloc.Bytes{poolUsed: &used, poolReserved: &reserved} {
			n, err := p.dev.driver.poolAttribute(p.pool, key)
			if err != nil {
				return err
			}
			*value = alloc.Bytes(n)
		}
		return nil
	})
	if err != nil {
		return 0, 0, fmt.Errorf("levels of %v: %w", p, mapped(err))
	}
	return used, reserved, nil
}

// Reserved returns what the pool holds from the driver: in callers' hands, or free. The error
// is alloc.ErrClosed, or the driver's.
func (p *pool) Reserved() (alloc.Bytes, error) {
	_, reserved, err := p.Stats()
	return reserved, err
}

// SetReleaseThreshold changes PoolConfig.ReleaseThreshold. math.MaxInt64 keeps everything.
// The error is alloc.ErrClosed, or the driver's.
func (p *pool) SetReleaseThreshold(n alloc.Bytes) error {
	if n < 0 {
		return fmt.Errorf("%w of %d bytes: a release threshold is 0 or more", alloc.ErrSize, n)
	}
	return p.set("release threshold of", map[int]uint64{poolReleaseThreshold: uint64(n)})
}

func (p *pool) set(what string, attributes map[int]uint64) error {
	err := p.do(func() error {
		for key, value := range attributes {
			if err := p.dev.driver.setPoolAttribute(p.pool, key, value); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s %v: %w", what, p, mapped(err))
	}
	return nil
}

// Trim gives free memory back to the driver until the pool holds at most keep bytes. Memory that
// queued work still uses is not free: wait for the streams first. The error is alloc.ErrClosed, or
// the driver's.
func (p *pool) Trim(keep alloc.Bytes) error {
	err := p.do(func() error { return p.dev.driver.trimPool(p.pool, int64(max(keep, 0))) })
	if err != nil {
		return fmt.Errorf("trim %v to %v: %w", p, keep, mapped(err))
	}
	return nil
}
