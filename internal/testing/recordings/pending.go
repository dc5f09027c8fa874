package recordings

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

// A recording has no work and does not say which streams used a block that is pending. The replay gives each
// use a stream of its own, since the events on one stream pass in order. The event passes when the recording
// has the block's free_completed.

// event of a block that is pending. A recording that gives memory back after the block's free_completed
// waited for it: then the event passes when it is waited for, and not before, so that the request finds what
// it found.
type event struct{ reached, passed bool }

func (e *event) Done() (bool, error) { return e.passed, nil }

func (e *event) Wait() error {
	if !e.reached {
		return errNotRecorded
	}
	return nil
}

// RecordEvent returns an event that the replay takes.
func (d *device) RecordEvent(alloc.Stream) (capability.Event, error) {
	d.event = new(event)
	return d.event, nil
}

// suspend frees a block that stays pending.
func (r *replay) suspend(p alloc.Ptr) error {
	r.users++
	if err := r.cache.RecordStream(p, ^r.users); err != nil { // a handle that no driver gives
		return err
	}
	if err := r.cache.Free(p); err != nil {
		return err
	}
	r.pending[p], r.dev.event = r.dev.event, nil
	return nil
}

// complete lets the event of a pending block pass soon, and reports whether the block is one.
func (r *replay) complete(p alloc.Ptr) bool {
	e, ok := r.pending[p]
	if ok {
		delete(r.pending, p)
		e.reached = true
		r.reached = append(r.reached, e)
	}
	return ok
}

// pass lets the events pass that have been reached.
func (r *replay) pass() {
	for _, e := range r.reached {
		e.passed = true
	}
	r.reached = nil
}
