package nvml

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Builder makes a Recording from samples that were taken elsewhere, such as those in a log of
// nvidia-smi. Its memory is bounded as a Recorder's is, however many samples there are. The zero
// Builder is empty and ready to use. Only one goroutine at a time may use it.
type Builder struct {
	devices []Device
	latest  []time.Duration // by device
	totals  []alloc.Bytes   // by device
	tracks  map[builderKey]*buffer
}

type builderKey struct {
	device   int
	quantity Quantity
	target   Target
}

// The bounds of a Builder, beside maxDevices. A recording of more than manySeries series has fewer points in each
// further one, so that all of them take less than 100 MB.
const (
	maxProcesses = 256
	manySeries   = 128
	fewPoints    = 256
)

// ErrTooMany is the error of a recording with more devices or processes than any machine has.
var ErrTooMany = errors.New("more than a recording can hold")

// Add adds what a device answered at a time since the recording's start: a sample of each quantity
// that the reading knows, and a gap for each other one in asked. ProcessMemory is that of the target;
// for all other quantities target does not matter. MemoryTotal becomes the Capacity of the device's
// other series of memory and makes no series. The device of the reading identifies the series. For
// each device, time must not go back. The error says so, or is ErrTooMany.
func (b *Builder) Add(at time.Duration, r *Reading, target Target, asked ...Quantity) error {
	device, err := b.device(r.Device)
	if err != nil {
		return err
	}
	if at < b.latest[device] {
		return fmt.Errorf("the time of %s goes back from %v to %v: are these two recordings in one file?", r.Label(), b.latest[device], at)
	}
	b.latest[device] = at
	if total, ok := r.bytes(MemoryTotal); ok && total > 0 {
		b.totals[device] = total
	}
	for q := range numQuantities {
		v, ok := r.Value(q)
		if q == MemoryTotal || !ok && !slices.Contains(asked, q) {
			continue
		}
		to, err := b.buffer(device, q, target)
		if err != nil {
			return err
		}
		to.add(at, v, ok)
	}
	return nil
}

// String says how much was added: "2 devices, 5 series".
func (b *Builder) String() string {
	return fmt.Sprintf("%d devices, %d series", len(b.devices), len(b.tracks))
}

func (b *Builder) device(d Device) (int, error) {
	if i := slices.Index(b.devices, d); i >= 0 {
		return i, nil
	}
	if len(b.devices) == maxDevices {
		return 0, fmt.Errorf("%w: it has more than %d devices", ErrTooMany, maxDevices)
	}
	d.UUID, d.Name, d.BusID = strings.Clone(d.UUID), strings.Clone(d.Name), strings.Clone(d.BusID) // they may be parts of a long line
	b.devices, b.latest, b.totals = append(b.devices, d), append(b.latest, 0), append(b.totals, 0)
	return len(b.devices) - 1, nil
}

func (b *Builder) buffer(device int, q Quantity, target Target) (*buffer, error) {
	if q != ProcessMemory {
		target = Target{}
	}
	key := builderKey{device, q, target}
	to := b.tracks[key]
	if to == nil {
		if b.tracks == nil {
			b.tracks = make(map[builderKey]*buffer)
		}
		if q == ProcessMemory && b.processes() == maxProcesses {
			return nil, fmt.Errorf("%w: it has more than %d processes", ErrTooMany, maxProcesses)
		}
		to = growingBuffer(defaultPoints)
		if len(b.tracks) >= manySeries {
			to = growingBuffer(fewPoints)
		}
		b.tracks[key] = to
	}
	return to, nil
}

func (b *Builder) processes() (n int) {
	for key := range b.tracks {
		if key.quantity == ProcessMemory {
			n++
		}
	}
	return n
}

// Recording returns what was added, with source as what answered. The series of a device follow
// each other, and the devices are in the order of their numbers.
func (b *Builder) Recording(source string, start time.Time) Recording {
	rec := Recording{Start: start, Source: source, Devices: slices.Clone(b.devices)}
	order := make([]int, len(b.devices))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return compareDevices(b.devices[x], b.devices[y]) })
	slices.SortStableFunc(rec.Devices, compareDevices)
	keys := make([]builderKey, 0, len(b.tracks))
	for key := range b.tracks {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(x, y builderKey) int {
		return cmp.Or(cmp.Compare(slices.Index(order, x.device), slices.Index(order, y.device)),
			cmp.Compare(x.quantity, y.quantity), cmp.Compare(x.target.PID, y.target.PID))
	})
	for _, key := range keys {
		from := b.tracks[key]
		s := Series{Device: b.devices[key.device], Quantity: key.quantity, Target: key.target, Scope: ofDevice, total: from.total, points: slices.Clone(from.points)}
		if key.quantity.isMemory() {
			s.Capacity = b.totals[key.device]
		}
		rec.Series = append(rec.Series, s)
	}
	return rec
}

func compareDevices(x, y Device) int {
	return cmp.Or(cmp.Compare(x.File, y.File), cmp.Compare(x.Index, y.Index), cmp.Compare(x.MIG, y.MIG), cmp.Compare(x.UUID, y.UUID))
}
