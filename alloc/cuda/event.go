package cuda

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

// RecordEvent marks the end of the work that is queued on a stream now, by cuEventCreate (without
// timing) and cuEventRecord. The stream is a CUstream of the device's context. The errors, the
// event's too, are ErrDeviceLost, alloc.ErrClosed, and the driver's own.
func (d *gpu) RecordEvent(s alloc.Stream) (capability.Event, error) {
	m := &mark{device: d}
	err := d.do(func() (err error) {
		m.event, err = d.recorded(s, eventWithoutTiming)
		if err == nil {
			d.events.add(m)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("record an event on stream %#x of %v: %w", uint64(s), d, mapped(err))
	}
	return m, nil
}

// StreamOfThread returns CU_STREAM_PER_THREAD. A Cache and a Pool refuse this handle, because goroutines change threads.
// CU_STREAM_LEGACY is the default stream, 0, under another name.
func (d *gpu) StreamOfThread() alloc.Stream { return perThread }

const perThread alloc.Stream = 2 // CU_STREAM_PER_THREAD

// mark is an event that is destroyed when its stream has reached it.
type mark struct {
	device *gpu
	event  event // 0 when it has passed
}

// Done asks by cuEventQuery.
func (m *mark) Done() (bool, error) {
	err := m.ask(m.device.driver.queryEvent)
	if errors.Is(err, codeNotReady) {
		return false, nil
	}
	return err == nil, err
}

// Wait waits by cuEventSynchronize.
func (m *mark) Wait() error { return m.ask(m.device.driver.waitEvent) }

// ask calls the driver. If the event has passed, it is destroyed: the driver's opinion of that
// changes nothing.
func (m *mark) ask(call func(event) error) error {
	err := m.device.do(func() error {
		if m.event == 0 {
			return nil
		}
		if err := call(m.event); err != nil {
			return err
		}
		_ = m.destroy()
		m.event = 0
		return nil
	})
	if err != nil && !errors.Is(err, codeNotReady) {
		err = fmt.Errorf("event on %v: %w", m.device, mapped(err))
	}
	return err
}

// destroy gives the event back. The context must be current.
func (m *mark) destroy() error {
	m.device.events.remove(m)
	return m.device.destroyEvent(m.event)
}

// recorded returns a new event that is recorded on a stream. The context must be current.
func (d *gpu) recorded(s alloc.Stream, flags uint32) (event, error) {
	e, err := d.driver.createEvent(flags)
	if err != nil {
		return 0, err
	}
	if err := d.driver.recordEvent(e, s); err != nil {
		return 0, errors.Join(err, d.destroyEvent(e))
	}
	return e, nil
}

// waitFor makes the work that is queued on a stream from now on wait for the work that is queued on another. The
// context must be current.
func (d *gpu) waitFor(s, other alloc.Stream) error {
	e, err := d.recorded(other, eventWithoutTiming)
	if err != nil {
		return err
	}
	err = d.driver.streamWaitEvent.call(uintptr(s), uintptr(e), 0)
	_ = d.destroyEvent(e) // the driver keeps what the wait needs
	return err
}

// openEvents are the events that are not destroyed yet, by holder. Close destroys them.
type openEvents struct {
	mu          sync.Mutex
	open        map[eventHolder]bool
	undestroyed []event // without a holder: the driver refused to destroy them
}

type eventHolder interface {
	// destroy destroys the events, and takes the holder off the list.
	destroy() error
}

func (o *openEvents) add(h eventHolder) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.open == nil {
		o.open = make(map[eventHolder]bool)
	}
	o.open[h] = true
}

func (o *openEvents) remove(h eventHolder) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.open, h)
}

// destroyEvent destroys an event. One that the driver refuses is left for retryDestroys. The context must be current.
func (d *gpu) destroyEvent(e event) error {
	err := d.driver.destroyEvent(e)
	if err != nil && !errors.Is(err, codeInvalidHandle) {
		d.events.mu.Lock()
		d.events.undestroyed = append(d.events.undestroyed, e)
		d.events.mu.Unlock()
	}
	return err
}

// retryDestroys destroys the events that the driver refused to destroy before. The context must be current.
func (d *gpu) retryDestroys() error {
	d.events.mu.Lock()
	events := d.events.undestroyed
	d.events.undestroyed = nil
	d.events.mu.Unlock()
	var errs []error
	for _, e := range events {
		errs = append(errs, d.destroyEvent(e))
	}
	return errors.Join(errs...)
}

// destroyEvents destroys the events that are left. No call may be under way.
func (d *gpu) destroyEvents() error {
	if len(d.events.open)+len(d.events.undestroyed) == 0 {
		return nil
	}
	return d.inContext(func() error {
		errs := []error{d.retryDestroys()}
		for h := range d.events.open {
			errs = append(errs, h.destroy())
		}
		return errors.Join(errs...)
	})
}

// StartInterval marks the beginning by an event on the default stream, which waits for the work
// that was queued on other streams of the context before. The error is alloc.ErrClosed, or the
// driver's: see [Error].
func (d *gpu) StartInterval() (capability.Interval, error) {
	i := &interval{device: d}
	if err := i.mark(&i.start); err != nil {
		return nil, fmt.Errorf("start an interval on %v: %w", d, mapped(err))
	}
	return i, nil
}

// interval is two events; 0 is none.
type interval struct {
	device      *gpu
	start, stop event
}

// destroy gives the events back. The context must be current.
func (i *interval) destroy() error {
	var errs []error
	for _, e := range []event{i.start, i.stop} {
		if e != 0 {
			errs = append(errs, i.device.destroyEvent(e))
		}
	}
	i.device.events.remove(i)
	return errors.Join(errs...)
}

func (i *interval) mark(e *event) error {
	return i.device.do(func() error {
		made, err := i.device.recorded(0, 0)
		if err != nil {
			return err
		}
		*e = made
		i.device.events.add(i)
		return nil
	})
}

// Stop marks the end. A second Stop is an error; where the first failed, the
// interval is used up.
func (i *interval) Stop() error {
	if i.start == 0 || i.stop != 0 {
		return errors.New("stop an interval: it is stopped")
	}
	if err := i.mark(&i.stop); err != nil {
		err = errors.Join(err, i.device.do(i.end))
		return fmt.Errorf("stop an interval on %v: %w", i.device, mapped(err))
	}
	return nil
}

// Elapsed returns the time between the events, to about half a microsecond: from
// when the device came to the first until it came to the second, idle or busy.
func (i *interval) Elapsed() (time.Duration, error) {
	if i.stop == 0 {
		return 0, errors.New("elapsed time of an interval: it was not stopped, or is used up: call Stop first, Elapsed once")
	}
	drv := i.device.driver
	var ms float32
	err := i.device.do(func() error {
		err := drv.waitEvent(i.stop)
		if err == nil {
			ms, err = drv.elapsed(i.start, i.stop)
		}
		return errors.Join(err, i.end())
	})
	if err != nil {
		return 0, fmt.Errorf("elapsed time of an interval on %v: %w", i.device, mapped(err))
	}
	return time.Duration(float64(ms) * float64(time.Millisecond)), nil
}

// end uses the interval up.
func (i *interval) end() error {
	err := i.destroy()
	i.start, i.stop = 0, 0
	return err
}
