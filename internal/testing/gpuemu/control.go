//go:build linux

package gpuemu

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/internal/dylib"
)

// Control inspects a running emulated machine, and makes its calls fail. Its methods may be called from any
// goroutine, Fail and Heal from one at a time.
type Control struct {
	mem   []byte
	state *sharedState
}

// Usage is what one process holds of one device.
type Usage struct {
	Used      uint64 // bytes in whole pages, contexts included
	Requested uint64 // bytes that live allocations asked for
	Buffers   uint32 // live allocations
	Contexts  uint32
}

// The layout of src/state.h.
type (
	sharedFault struct {
		name     [48]byte
		from, to uint32
		code     int32
		seen     uint32
	}
	sharedProcess struct {
		pid    int32
		events uint32
		start  uint64
		dev    [8]Usage
	}
	sharedState struct {
		magic, devices            uint32
		lost, held                uint32
		memory, reserved, context uint64
		mig                       uint64
		name                      [80]byte
		faults                    [16]sharedFault
		processes                 [256]sharedProcess
		base, advanced            uint64
	}
)

// Attach gives the control of the machine that this process runs under. Some
// call of the emulated libraries must have been made before.
func Attach() (*Control, error) {
	path := os.Getenv("GPUEMU_STATE")
	if path == "" {
		return nil, errors.New("gpuemu: this process does not run under the emulated driver")
	}
	return OpenControl(strings.Replace(path, "%p", strconv.Itoa(os.Getpid()), 1))
}

// OpenControl gives the control of the machine that has its state in the file.
func OpenControl(path string) (*Control, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("gpuemu: state: %w", err)
	}
	defer f.Close()
	mem, err := syscall.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(sharedState{})), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("gpuemu: state %s: %w", path, err)
	}
	return &Control{mem, (*sharedState)(unsafe.Pointer(&mem[0]))}, nil
}

// Close ends the control; the machine goes on.
func (c *Control) Close() error { return syscall.Munmap(c.mem) }

// Fail adds a fault for all processes of the machine. Calls are counted from now on.
func (c *Control) Fail(f Fault) error {
	for i := range c.state.faults {
		slot := &c.state.faults[i]
		if atomic.LoadUint32(&slot.from) != 0 {
			continue
		}
		if f.From < 1 || len(f.Function) >= len(slot.name) {
			return fmt.Errorf("gpuemu: fault %v: calls are counted from 1, names have less than %d bytes", f, len(slot.name))
		}
		clear(slot.name[:])
		copy(slot.name[:], f.Function)
		slot.to, slot.code = uint32(f.From), int32(f.Code)
		if f.Onward {
			slot.to = math.MaxUint32
		}
		atomic.StoreUint32(&slot.seen, 0)
		atomic.StoreUint32(&slot.from, uint32(f.From)) // the fault is active from here on
		return nil
	}
	return fmt.Errorf("gpuemu: fault %v: there are %d already", f, len(c.state.faults))
}

// Heal removes all faults that Fail added, and undoes Lose.
func (c *Control) Heal() {
	for i := range c.state.faults {
		atomic.StoreUint32(&c.state.faults[i].from, 0)
	}
	atomic.StoreUint32(&c.state.lost, 0)
}

// Lose makes all devices fall off the bus.
func (c *Control) Lose() { atomic.StoreUint32(&c.state.lost, 1) }

// Live is what the emulated libcuda of this very process has given and not taken back: the
// bytes that were asked for, by address. No fault keeps it from answering.
func Live() (map[uint64]uint64, error) { return live("gpuemu_live") }

// LiveHost is Live for pinned host memory.
func LiveHost() (map[uint64]uint64, error) { return live("gpuemu_live_host") }

// LiveArrays is Live for arrays, by their handles.
func LiveArrays() (map[uint64]uint64, error) { return live("gpuemu_live_arrays") }

func live(function string) (map[uint64]uint64, error) {
	lib, err := dylib.Open("libcuda.so.1")
	if err != nil {
		return nil, fmt.Errorf("gpuemu: live allocations: %w", err)
	}
	list := lib.Func(function)
	if list == 0 {
		return nil, errors.New("gpuemu: live allocations: the driver of this process is not the emulated one")
	}
	for size := 1024; ; size *= 2 {
		at, bytes := make([]uint64, size), make([]uint64, size)
		n := int(list.Call(uintptr(unsafe.Pointer(&at[0])), uintptr(unsafe.Pointer(&bytes[0])), uintptr(size)))
		if n > size {
			continue
		}
		live := make(map[uint64]uint64, n)
		for i := range n {
			live[at[i]] = bytes[i]
		}
		return live, nil
	}
}

// Events is how many CUDA events a process has made and not destroyed.
func (c *Control) Events(pid int) int {
	for i := range c.state.processes {
		if p := &c.state.processes[i]; int(atomic.LoadInt32(&p.pid)) == pid {
			return int(atomic.LoadUint32(&p.events))
		}
	}
	return 0
}

// Usage is what a process holds of a device; false where it has not entered,
// or has died and was reaped.
func (c *Control) Usage(pid, device int) (Usage, bool) {
	for i := range c.state.processes {
		p := &c.state.processes[i]
		if int(atomic.LoadInt32(&p.pid)) != pid {
			continue
		}
		d := &p.dev[device]
		return Usage{
			Used:      atomic.LoadUint64(&d.Used),
			Requested: atomic.LoadUint64(&d.Requested),
			Buffers:   atomic.LoadUint32(&d.Buffers),
			Contexts:  atomic.LoadUint32(&d.Contexts),
		}, true
	}
	return Usage{}, false
}
