package attach

import (
	"errors"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Driver reports what the calls of a process do not show: package nvml has the figures, and
// nvml.Visible the devices as a process numbers them. An error is that a figure is not known.
// The methods are called from any goroutine.
type Driver interface {
	// Memory returns what is in use of a device by all processes, and all that it has.
	Memory(pid, ordinal int) (used, total alloc.Bytes, err error)
	// Held returns what a process holds of each device that it uses, contexts included, by
	// the ordinals of the process.
	Held(pid int) (map[int]alloc.Bytes, error)
}

var errNoDriver = errors.New("no driver answers")

// nobody is the driver where none is given.
type nobody struct{}

func (nobody) Memory(int, int) (used, total alloc.Bytes, err error) { return 0, 0, errNoDriver }
func (nobody) Held(int) (map[int]alloc.Bytes, error)                { return nil, errNoDriver }

// earlier is what a process held of its devices before it was watched.
type earlier struct {
	held  map[deviceID]alloc.Bytes
	known bool
}

func askHeld(d Driver, pid int) *earlier {
	e := &earlier{held: make(map[deviceID]alloc.Bytes)}
	held, err := d.Held(pid)
	for ordinal, bytes := range held {
		e.held[deviceID(ordinal)] = bytes
	}
	e.known = err == nil
	return e
}

// device is where contexts from before must be: on the only device that was in use then.
func (e *earlier) device() deviceID {
	if e == nil || !e.known || len(e.held) != 1 {
		return unknownDevice
	}
	for d := range e.held {
		return d
	}
	return unknownDevice
}

// on returns what was held of a device, -1 if that is not known.
func (e *earlier) on(d deviceID) alloc.Bytes {
	switch {
	case e == nil:
		return 0
	case !e.known || d == hostMemory:
		return -1
	case d != unknownDevice:
		return e.held[d]
	}
	var all alloc.Bytes
	for _, bytes := range e.held {
		all += bytes
	}
	return all
}
