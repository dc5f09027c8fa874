package trackertest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Rig is a device under test.
type Rig struct {
	Device alloc.Device
	// FailAlloc and FailFree make the next call of the device's Alloc or Free
	// fail. They are nil where the device cannot be made to fail.
	FailAlloc, FailFree func()
	// Heal takes back failures that did not come to pass; nil if there are none.
	Heal func()
}

// fault is what a device does wrong once, at the next call that can.
type fault int

const (
	none       fault = iota
	allocFails       // with an error of the driver's
	allocFull        // as if memory were out, with nothing but alloc.ErrOutOfMemory
	freeFails
	memInfoFails
	driverAllocFails // the Rig's own
	driverFreeFails
	// A broken driver gives memory that cannot be.
	givesZero
	givesLive   // an address that is live
	givesInside // one in the midst of live memory, as only a cache can tell
	faults
)

const maxDriverFaults = 8 // at once

var errInjected = errors.New("injected fault")

// device is the device under test, which fails on demand. It lists what is live
// on it, as the driver would.
type device struct {
	alloc.Device
	rig     Rig
	failing atomic.Bool  // something was set to fail since the last heal
	driver  atomic.Int64 // faults of the driver's own since then

	mu      sync.Mutex
	next    fault
	live    map[alloc.Ptr]alloc.Bytes
	last    alloc.Ptr          // given to an allocator, not to other code
	bad     []string           // frees of what is not live
	refused int                // frees that failed
	unfreed map[alloc.Ptr]bool // live, and the last free of it failed
}

// Unwrap lets alloc.As see the device's optional methods.
func (d *device) Unwrap() alloc.Device { return d.Device }

// arm sets a random fault, of those below the given one.
func (d *device) arm(r *rand.Rand, below fault) {
	f := fault(1 + r.IntN(int(below)-1))
	switch {
	case f == driverAllocFails && d.rig.FailAlloc != nil && d.driver.Add(1) <= maxDriverFaults:
		d.rig.FailAlloc()
	case f == driverFreeFails && d.rig.FailFree != nil && d.driver.Add(1) <= maxDriverFaults:
		d.rig.FailFree()
	}
	d.set(f)
}

func (d *device) set(f fault) {
	d.failing.Store(true)
	d.mu.Lock()
	d.next = f
	d.mu.Unlock()
}

// heal takes back what is set to fail.
func (d *device) heal() {
	if d.rig.Heal != nil {
		d.rig.Heal()
	}
	d.mu.Lock()
	d.next = none
	d.mu.Unlock()
	d.failing.Store(false)
	d.driver.Store(0)
}

// fails reports whether one of the faults is next, which then has happened.
func (d *device) fails(at ...fault) fault {
	for _, f := range at {
		if d.next == f {
			d.next = none
			return f
		}
	}
	return none
}

func (d *device) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	broken := []fault{givesZero}
	if _, ok := d.live[d.last]; ok {
		broken = append(broken, givesLive, givesInside)
	}
	switch d.fails(append(broken, allocFails, allocFull)...) {
	case allocFails:
		return 0, errInjected
	case allocFull:
		return 0, fmt.Errorf("no more: %w", alloc.ErrOutOfMemory)
	case givesZero:
		return 0, nil
	case givesLive:
		return d.last, nil
	case givesInside:
		return d.last + 512, nil
	}
	p, err := d.take(n)
	if err == nil {
		d.last = p
	}
	return p, err
}

// take is other code that takes memory; the caller holds d.mu.
func (d *device) take(n alloc.Bytes) (alloc.Ptr, error) {
	p, err := d.Device.Alloc(n)
	if err == nil {
		d.live[p] = n
		delete(d.unfreed, p)
	}
	return p, err
}

func (d *device) Free(p alloc.Ptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fails(freeFails) == freeFails {
		d.refused++
		d.unfreed[p] = true
		return errInjected
	}
	if _, ok := d.live[p]; !ok {
		d.bad = append(d.bad, fmt.Sprintf("free of %v, which is not live", p))
	}
	err := d.free(p)
	if err != nil {
		d.refused++
		d.unfreed[p] = true
	}
	return err
}

func (d *device) has(p alloc.Ptr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.live[p]
	return ok
}

// forgive forgets that a free failed.
func (d *device) forgive(p alloc.Ptr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.unfreed, p)
}

// isUnfreed reports whether memory is live since its free failed.
func (d *device) isUnfreed(p alloc.Ptr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unfreed[p]
}

// give is other code that gives memory back.
func (d *device) give(p alloc.Ptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.free(p)
}

func (d *device) free(p alloc.Ptr) error {
	err := d.Device.Free(p)
	if err == nil {
		delete(d.live, p)
		delete(d.unfreed, p)
	}
	return err
}

func (d *device) MemInfo() (alloc.MemInfo, error) {
	d.mu.Lock()
	failing := d.fails(memInfoFails)
	d.mu.Unlock()
	if failing == memInfoFails {
		return alloc.MemInfo{}, errInjected
	}
	return d.Device.MemInfo()
}

// report is a Config.Report. It keeps the blocks that came since the last check; with
// rand, some writes fail.
type report struct {
	called func()

	mu     sync.Mutex
	rand   *rand.Rand
	blocks []string
	header bool
	failed int // since the last check
	broken bool
}

func (r *report) Write(block []byte) (int, error) {
	r.called()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.header:
		r.header = true
	case r.rand != nil && r.rand.IntN(4) == 0:
		r.failed++
		r.broken = true
		return 0, errInjected
	default:
		r.blocks = append(r.blocks, string(block))
	}
	return len(block), nil
}
