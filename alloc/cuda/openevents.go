package cuda

import (
	"errors"
	"sync"
)

// openEvents are the events that are not destroyed, by who holds them, for Close.
type openEvents struct {
	mu   sync.Mutex
	open map[eventHolder]bool
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

// destroyEvents destroys the events that are left. No call may be under way.
func (d *Device) destroyEvents() error {
	if len(d.events.open) == 0 {
		return nil
	}
	return d.inContext(func() error {
		var errs []error
		for h := range d.events.open {
			errs = append(errs, h.destroy())
		}
		return errors.Join(errs...)
	})
}
