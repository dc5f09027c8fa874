//go:build cuda && cgo

package cuda

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Synchronize waits until all work in the context, on every stream, is done. An
// error may be that of work queued earlier.
func (d *Device) Synchronize() error {
	if err := d.do(cu.Synchronize); err != nil {
		return fmt.Errorf("synchronize %v: %w", d, mapped(err))
	}
	return nil
}

// CopyToDevice copies src to the device. The error is alloc.ErrUnknownPtr when
// the bytes at dst are not all inside one allocation.
func (d *Device) CopyToDevice(dst alloc.Ptr, src []byte) error {
	return d.copy(dst, src, func(host unsafe.Pointer, n int64) error { return cu.MemcpyHtoD(cu.DevicePtr(dst), host, n) })
}

// CopyToHost fills dst from the device, with CopyToDevice's errors.
func (d *Device) CopyToHost(dst []byte, src alloc.Ptr) error {
	return d.copy(src, dst, func(host unsafe.Pointer, n int64) error { return cu.MemcpyDtoH(host, cu.DevicePtr(src), n) })
}

func (d *Device) copy(p alloc.Ptr, host []byte, move func(host unsafe.Pointer, n int64) error) error {
	err := d.do(func() error {
		if len(host) == 0 {
			return nil
		}
		return move(unsafe.Pointer(unsafe.SliceData(host)), int64(len(host)))
	})
	if err != nil {
		return fmt.Errorf("copy %d bytes at %v on %v: %w", len(host), p, d, mappedAddress(err))
	}
	return nil
}

// StartInterval marks the beginning by an event on the default stream, which waits for
// the work that other streams of the context were given before.
func (d *Device) StartInterval() (alloc.Interval, error) {
	i := &interval{device: d}
	if err := i.mark(&i.start); err != nil {
		return nil, fmt.Errorf("start an interval on %v: %w", d, mapped(err))
	}
	return i, nil
}

// interval is two events; the zero Event is none.
type interval struct {
	device      *Device
	start, stop cu.Event
}

func (i *interval) mark(event *cu.Event) error {
	return i.device.do(func() error {
		made, err := cu.MakeEvent(cu.DefaultEvent)
		if err != nil {
			return err
		}
		if err := made.Record(cu.NoStream); err != nil {
			return errors.Join(err, cu.DestroyEvent(&made))
		}
		*event = made
		return nil
	})
}

// Stop marks the end. A second Stop is an error; where the first failed, the
// interval is used up.
func (i *interval) Stop() error {
	if i.start == (cu.Event{}) || i.stop != (cu.Event{}) {
		return errors.New("stop an interval: it is stopped")
	}
	if err := i.mark(&i.stop); err != nil {
		err = errors.Join(err, i.device.do(func() error { return cu.DestroyEvent(&i.start) }))
		return fmt.Errorf("stop an interval on %v: %w", i.device, mapped(err))
	}
	return nil
}

// Elapsed returns the time between the events, to about half a microsecond: from
// when the device came to the first until it came to the second, idle or busy.
func (i *interval) Elapsed() (time.Duration, error) {
	if i.stop == (cu.Event{}) {
		return 0, errors.New("elapsed time of an interval: it was not stopped, or is used up: call Stop first, Elapsed once")
	}
	var ms float64
	err := i.device.do(func() (err error) {
		err = i.stop.Synchronize()
		if err == nil {
			ms, err = i.start.Elapsed(i.stop)
		}
		return errors.Join(err, cu.DestroyEvent(&i.start), cu.DestroyEvent(&i.stop))
	})
	if err != nil {
		return 0, fmt.Errorf("elapsed time of an interval on %v: %w", i.device, mapped(err))
	}
	return time.Duration(ms * float64(time.Millisecond)), nil
}
