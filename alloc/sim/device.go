package sim

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// What a device is unless its Config says otherwise.
const (
	defaultName   = "Simulated GPU"
	defaultMemory = 24 * alloc.GiB
	// defaultOverhead is near what a CUDA context takes of a data centre GPU.
	defaultOverhead = 450 * alloc.MiB
)

// pageSize is the unit in which allocations take the device's memory.
const pageSize = 2 * alloc.MiB

// maxMemory is the largest memory that a device can be given.
const maxMemory = alloc.TiB

// Config describes a device. The zero Config is a device of 24 GiB.
type Config struct {
	Name    string      // "" means "Simulated GPU"
	Ordinal int         // the device's index; devices of different ordinals share no address
	Memory  alloc.Bytes // total, up to 1 TiB, rounded down to whole pages of 2 MiB; 0 means 24 GiB
	// Overhead is what the context takes when the device is opened, rounded up to whole
	// pages; 0 means 450 MiB, a negative value none.
	Overhead alloc.Bytes
	// Backed makes copies work: host memory backs each allocation from the first copy
	// on.
	Backed bool
	// CheckReuse has Device.Err report memory that a Cache hands out while work of Device.Queue
	// still uses it. Each Alloc of the Cache then looks at all the work.
	CheckReuse bool
}

// withDefaults fills in the zero fields and checks the rest.
func (c Config) withDefaults() (Config, error) {
	c.Name = cmp.Or(c.Name, defaultName)
	c.Memory = cmp.Or(c.Memory, defaultMemory)
	c.Overhead = wholePages(cmp.Or(c.Overhead, defaultOverhead))
	switch {
	case c.Ordinal < 0 || c.Ordinal > maxOrdinal:
		return c, fmt.Errorf("open simulated device: ordinal %d: want 0 to %d", c.Ordinal, maxOrdinal)
	case c.Memory < pageSize || c.Memory > maxMemory:
		return c, fmt.Errorf("open simulated device %d: memory of %v: want %v to %v", c.Ordinal, c.Memory, pageSize, maxMemory)
	}
	c.Memory -= c.Memory % pageSize
	if c.Overhead > c.Memory {
		return c, fmt.Errorf("open simulated device %d: context overhead of %v is more than the memory of %v: set Overhead, -1 for none", c.Ordinal, c.Overhead, c.Memory)
	}
	return c, nil
}

// Device is a simulated GPU, open from New to Close. It has all the optional methods of an alloc.Device that another
// device of its kind could answer, except UUID: [alloc.As] finds them.
type Device interface {
	alloc.Device
	alloc.Copier
	// Close gives everything back: allocations, overhead, host memory. After it every call that would
	// reach a driver returns alloc.ErrClosed, Close too.
	Close() error
	// NewPool makes a stream-ordered pool, as cuda.Pool is of a real GPU. It keeps free memory up to
	// the release threshold for reuse. Each allocation takes whole pages. Freed memory can be used
	// again on its own stream at once, and on others when its stream has done the work before the
	// free. Synchronize gives back free memory beyond the threshold.
	NewPool(releaseThreshold alloc.Bytes) alloc.StreamAllocator
	// Pinned returns an allocator of pinned host memory with a limit in bytes; 0 means 8 GiB. The
	// memory is only counted: no real memory is behind it, and none of the device's is used.
	Pinned(limit alloc.Bytes) alloc.Device

	// Queue queues work on a stream that uses n bytes at p, for a time by the device's clock. It
	// begins when the work queued before it on that stream is done. It changes no memory: to do that,
	// queue a Fill after it. The errors are alloc.ErrClosed and those of faults.
	Queue(s alloc.Stream, p alloc.Ptr, n alloc.Bytes, takes time.Duration) error
	// Advance moves the clock forward, so that work gets done, and returns the time, which begins at 0.
	// Waiting moves it too, by the time waited: Synchronize, an event's Wait, and Free and Unmap,
	// which wait for all work as a driver does.
	Advance(by time.Duration) (now time.Duration)
	// Err returns an error for the first block that a Cache handed out too early, or nil. It needs
	// Config.CheckReuse. Synchronize returns it too, as a driver reports an illegal access.
	Err() error

	// Inject makes calls fail. The faults count the calls from now on, and those that are left of an
	// earlier Inject are gone: Inject() takes all away. A fault that names no call of the device is an
	// error, and nothing changes then.
	Inject(f ...Fault) error
	// SetLatency makes every call that reaches the driver sleep first. Calls sleep side by side.
	SetLatency(each time.Duration)
	// SetOther says how much memory other processes use, rounded up to whole pages. They get at most
	// what is free.
	SetOther(n alloc.Bytes)
	// Live returns how many allocations there are, and the bytes that the driver has given: those
	// requested for the allocations, and those mapped to reserved addresses.
	Live() (allocations int, given alloc.Bytes)
	// Calls returns how many calls of a kind, named as in a Fault, the open device has had, including
	// those that failed.
	Calls(call string) int
}

// device is a Device.
type device struct {
	name    string
	ordinal int
	total   alloc.Bytes

	mu       sync.Mutex
	overhead alloc.Bytes
	other    alloc.Bytes
	memory   *memory
	faults   faults
	latency  time.Duration
	calls    map[string]int
	closed   bool
	pools    []*pool
	pooled   map[alloc.Ptr]bool // pages that a pool holds

	streams    streams
	checkReuse bool
}

var (
	_ Device         = (*device)(nil)
	_ capability.All = (*device)(nil)
)

// New opens a device. The error says which field of cfg is out of range.
func New(cfg Config) (Device, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &device{
		name:     cfg.Name,
		ordinal:  cfg.Ordinal,
		total:    cfg.Memory,
		overhead: cfg.Overhead,
		memory:   newMemory(cfg.Ordinal, cfg.Backed),
		calls:    make(map[string]int),

		streams:    streams{ends: make(map[alloc.Stream]time.Duration)},
		checkReuse: cfg.CheckReuse,
	}
	return d, nil
}

// Name returns the device's product name.
func (d *device) Name() string { return d.name }

// Ordinal returns the device's index.
func (d *device) Ordinal() int { return d.ordinal }

// String returns the name and the ordinal: "Simulated GPU 0".
func (d *device) String() string { return text.Line(fmt.Sprintf("%s %d", d.name, d.ordinal)) }

// Alloc allocates n bytes. The errors are *alloc.OutOfMemoryError when too few pages are free,
// alloc.ErrSize when n is negative, alloc.ErrClosed, and those of faults. A request for zero bytes
// takes 512 bytes, so that it has an address of its own.
func (d *device) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	if n < 0 {
		return 0, fmt.Errorf("%w of %d bytes: negative", alloc.ErrSize, n)
	}
	defer d.begin()()
	if err := d.enter("Alloc"); errors.Is(err, alloc.ErrOutOfMemory) {
		return 0, d.outOfMemory(n, err)
	} else if err != nil {
		return 0, err
	}
	p, ok := d.memory.alloc(n, uint64(d.free()/pageSize))
	if !ok {
		return 0, d.outOfMemory(n, nil)
	}
	return p, nil
}

// Free takes back an address that Alloc gave. The errors are
// alloc.ErrDoubleFree for an address that is free already,
// alloc.ErrUnknownPtr for one that Alloc never gave, alloc.ErrClosed, and those of faults.
func (d *device) Free(p alloc.Ptr) error {
	defer d.begin()()
	if err := d.enter("Free"); err != nil {
		return err
	}
	if _, ok := d.memory.live[p]; ok && !d.pooled[p] {
		d.memory.write(d.streams.drain())
		d.memory.free(p)
		return nil
	}
	if _, ok := d.memory.given[p]; ok {
		return fmt.Errorf("free %v on %v: %w", p, d, alloc.ErrDoubleFree)
	}
	return fmt.Errorf("free %v on %v: %w", p, d, alloc.ErrUnknownPtr)
}

// MemInfo returns the free and the total memory. Free memory excludes the context's overhead, other
// processes' memory, and every page that is partly used. The error is alloc.ErrClosed, or that of
// an injected fault: see Inject.
func (d *device) MemInfo() (alloc.MemInfo, error) {
	defer d.begin()()
	if err := d.enter("MemInfo"); err != nil {
		return alloc.MemInfo{}, err
	}
	return alloc.MemInfo{Free: d.free(), Total: d.total}, nil
}

func (d *device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("close %v: %w", d, alloc.ErrClosed)
	}
	d.closed = true
	d.overhead = 0
	d.memory = newMemory(d.ordinal, false)
	return nil
}

// Synchronize completes all queued work, and returns Err's error.
func (d *device) Synchronize() error {
	if err := d.call("Synchronize"); err != nil {
		return err
	}
	d.apply(d.streams.drain())
	d.mu.Lock()
	pools := d.pools
	d.mu.Unlock()
	for _, p := range pools {
		p.synchronized()
	}
	return d.Err()
}

// CopyToDevice copies src to the device. The errors are errors.ErrUnsupported without Config.Backed, and
// alloc.ErrUnknownPtr when the bytes at dst are not all inside one allocation.
func (d *device) CopyToDevice(dst alloc.Ptr, src []byte) error {
	defer d.begin()()
	return d.copy(dst, len(src), func(memory []byte) { copy(memory, src) })
}

// CopyToHost fills dst from the device. The errors are those of CopyToDevice. Fresh pages read as
// zeros; reused memory reads as what it had last.
func (d *device) CopyToHost(dst []byte, src alloc.Ptr) error {
	defer d.begin()()
	return d.copy(src, len(dst), func(memory []byte) { copy(dst, memory) })
}

// CopyFrom copies from a simulated device, or a device that wraps one. The errors are those of
// CopyToDevice, and errors.ErrUnsupported for any other device.
func (d *device) CopyFrom(dst alloc.Ptr, from alloc.Device, src alloc.Ptr, n alloc.Bytes) error {
	peer, ok := alloc.As[*device](from)
	if !ok {
		return fmt.Errorf("copy %v from %s to %v: not a simulated device: %w", n, text.Line(from.Name()), d, errors.ErrUnsupported)
	}
	if n < 0 || alloc.Bytes(int(n)) != n {
		return fmt.Errorf("%w of %d bytes: negative, or too large for this platform's int", alloc.ErrSize, n)
	}
	data := make([]byte, n)
	if err := peer.CopyToHost(data, src); err != nil {
		return err
	}
	return d.CopyToDevice(dst, data)
}

func (d *device) copy(p alloc.Ptr, n int, move func(memory []byte)) error {
	if err := d.enter("Copy"); err != nil {
		return err
	}
	if err := d.inside(fmt.Sprintf("copy %d bytes", n), p, n); err != nil {
		return err
	}
	memory, _ := d.memory.find(p, n)
	move(memory)
	return nil
}

// inside returns why n bytes at p cannot be reached.
func (d *device) inside(what string, p alloc.Ptr, n int) error {
	if !d.memory.backed {
		return fmt.Errorf("%s at %v on %v: no host memory behind the device: open it with Config.Backed: %w", what, p, d, errors.ErrUnsupported)
	}
	if _, ok := d.memory.find(p, n); !ok {
		return fmt.Errorf("%s at %v on %v: not inside an allocation: %w", what, p, d, alloc.ErrUnknownPtr)
	}
	return nil
}

// StartInterval times by the host's clock. The error is alloc.ErrClosed.
func (d *device) StartInterval() (capability.Interval, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("start an interval on %v: %w", d, alloc.ErrClosed)
	}
	return &interval{start: time.Now()}, nil
}

type interval struct{ start, stop time.Time }

func (i *interval) Stop() error {
	i.stop = time.Now()
	return nil
}

func (i *interval) Elapsed() (time.Duration, error) {
	if i.stop.IsZero() {
		return 0, errors.New("elapsed time of an interval: it was not stopped: call Stop first")
	}
	return i.stop.Sub(i.start), nil
}

func (d *device) NewPool(releaseThreshold alloc.Bytes) alloc.StreamAllocator {
	p := &pool{dev: d, threshold: max(releaseThreshold, 0), live: make(map[alloc.Ptr]*poolBlock)}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pools = append(d.pools, p)
	return p
}

// takePages allocates whole pages to a pool, without a call that a program makes.
func (d *device) takePages(n alloc.Bytes) (alloc.Ptr, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.memory.alloc(n, uint64(d.free()/pageSize))
	if ok {
		if d.pooled == nil {
			d.pooled = make(map[alloc.Ptr]bool)
		}
		d.pooled[p] = true
	}
	return p, ok
}

func (d *device) givePages(p alloc.Ptr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pooled, p)
	if _, ok := d.memory.live[p]; ok { // Close has them all
		d.memory.free(p)
	}
}

func (d *device) Pinned(limit alloc.Bytes) alloc.Device {
	if limit <= 0 {
		limit = defaultPinned
	}
	// Host addresses lie below every device's.
	return &pinned{dev: d, limit: limit, next: alloc.Ptr(pageSize), live: make(map[alloc.Ptr]alloc.Bytes)}
}

func (d *device) Inject(f ...Fault) error {
	due, err := newFaults(f)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = due
	return nil
}

func (d *device) SetLatency(each time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.latency = each
}

func (d *device) SetOther(n alloc.Bytes) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.other = min(wholePages(n), d.total-d.overhead-d.taken())
}

func (d *device) Live() (allocations int, given alloc.Bytes) {
	d.mu.Lock()
	defer d.mu.Unlock()
	given = d.memory.size
	for _, r := range d.memory.reserved {
		given += alloc.Bytes(uint64(len(r.mapped))*r.chunk) * pageSize
	}
	return len(d.memory.live), given
}

func (d *device) Calls(call string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[call]
}

// begin waits for the latency and takes the lock. The function that it returns releases the lock.
func (d *device) begin() (end func()) {
	d.mu.Lock()
	if latency := d.latency; latency > 0 {
		d.mu.Unlock()
		time.Sleep(latency)
		d.mu.Lock()
	}
	return d.mu.Unlock
}

// enter counts a call, and returns the error if the call must fail.
func (d *device) enter(call string) error {
	if d.closed {
		return fmt.Errorf("%s on %v: %w", call, d, alloc.ErrClosed)
	}
	d.calls[call]++
	if err := d.faults.next(call); err != nil {
		return &faultError{Call: call, Device: d.String(), Err: err}
	}
	return nil
}

// call is a call that only enters.
func (d *device) call(call string) error {
	defer d.begin()()
	return d.enter(call)
}

func (d *device) taken() alloc.Bytes { return alloc.Bytes(d.memory.taken) * pageSize }

func (d *device) free() alloc.Bytes { return d.total - d.overhead - d.other - d.taken() }

// outOfMemory adds to the error what the device knows. A device has no cache, so there is no
// reserved memory.
func (d *device) outOfMemory(n alloc.Bytes, cause error) error {
	return &alloc.OutOfMemoryError{
		Device:          d.String(),
		Requested:       n,
		Free:            d.free(),
		Total:           d.total,
		Reserved:        -1,
		Allocated:       d.memory.size,
		LargestInactive: -1,
		Err:             cause,
	}
}
