package nvml

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// fake is a source that answers what a test tells it.
type fake struct {
	mu        sync.Mutex
	devices   []Device
	used      []alloc.Bytes
	errs      []error // of each device's next readings
	processes func(d Device) (map[int]alloc.Bytes, error)
	listed    int           // calls of Processes
	read      int           // calls of Read
	takes     time.Duration // a call of Read
	hangs     chan struct{} // where it is not nil, Read waits until it is closed
	lacks     quantitySet
	scope     Scope
}

const titan = 25769803776

func newFake(n int) *fake {
	f := &fake{used: make([]alloc.Bytes, n), errs: make([]error, n)}
	for i := range n {
		f.devices = append(f.devices, Device{Index: i, UUID: fmt.Sprintf("GPU-%d", i), Name: "NVIDIA TITAN RTX"})
		f.used[i] = 100 * alloc.MiB
	}
	return f
}

func (f *fake) set(device int, used alloc.Bytes, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.used[device], f.errs[device] = used, err
}

// slow sets how long Read takes, and what it waits for.
func (f *fake) slow(takes time.Duration, hangs chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.takes, f.hangs = takes, hangs
}

func (f *fake) Name() string               { return "fake" }
func (f *fake) Devices() ([]Device, error) { return f.devices, nil }
func (f *fake) Close() error               { return nil }

func (f *fake) Read(devices []Device, wanted []Quantity, into []Reading) {
	want := setOf(wanted...)
	f.mu.Lock()
	hangs, takes := f.hangs, f.takes
	f.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	time.Sleep(takes)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.read++
	for i := range devices {
		index := devices[i].Index
		r := &into[i]
		r.reset(devices[i])
		if r.Err = f.errs[index]; r.Err != nil {
			continue
		}
		r.setMemory(titan, uint64(f.used[index]), titan-uint64(f.used[index]), f.scope)
		for q := Utilization; q < numQuantities; q++ {
			if want.has(q) && !f.lacks.has(q) {
				r.Set(q, float64(q))
			}
		}
	}
}

func (f *fake) Processes(d Device) (map[int]alloc.Bytes, error) {
	f.mu.Lock()
	f.listed++
	f.mu.Unlock()
	if f.processes == nil {
		return nil, nil
	}
	return f.processes(d)
}

func (f *fake) counts() (read, listed int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.read, f.listed
}

var errFlaky = errors.New("the driver's unknown error")

// processes is a table of processes that a test makes up.
type processes struct {
	host    bool
	parents map[int]int
}

func (p processes) hostNumbers() bool   { return p.host }
func (p processes) exists(pid int) bool { _, ok := p.parents[pid]; return ok }
func (p processes) parent(pid int) (int, uint64, bool) {
	ppid, ok := p.parents[pid]
	return ppid, uint64(pid), ok
}

// sampling makes a recorder ready for sampleNow, without its clock.
func sampling(tb testing.TB, r *Recorder) {
	r.sampler.start = time.Now()
	if err := r.files[0].begin(r.store.header); err != nil {
		tb.Fatal(err)
	}
	go r.asker.run(r.sampler)
	tb.Cleanup(func() { close(r.asker.asks) })
}

func sampleNow(r *Recorder) {
	r.ask()
	r.take(<-r.asker.answers)
}

// readAll asks every device of a source for everything it has.
func readAll(src Source) ([]Reading, error) {
	devices, err := src.Devices()
	return ReadAll(src, devices), err
}

// self is the process of the test.
var self = Target{PID: os.Getpid()}
