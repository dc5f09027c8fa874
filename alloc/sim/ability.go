package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/ability"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// Synchronize completes all queued work, and returns Err's error.
func (d *device) Synchronize() error {
	if err := d.call("Synchronize"); err != nil {
		return err
	}
	d.settle(d.streams.drain())
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
func (d *device) StartInterval() (ability.Interval, error) {
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
