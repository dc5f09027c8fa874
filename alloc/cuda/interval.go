package cuda

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpumemtrack/gpumemtrack/internal/ability"
)

// StartInterval marks the beginning by an event on the default stream, which waits for the work
// that was queued on other streams of the context before. The error is alloc.ErrClosed, or the
// driver's: see [Error].
func (d *gpu) StartInterval() (ability.Interval, error) {
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
