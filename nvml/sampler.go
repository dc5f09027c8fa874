package nvml

import (
	"errors"
	"time"
)

// sampler asks the devices, and keeps what it knows of each between samples. One goroutine uses
// it. After the first samples it allocates nothing.
type sampler struct {
	src     Source
	want    quantitySet // of devices
	wanted  []Quantity  // the same, as Source.Read takes it
	watcher *watcher    // nil if no process is asked for
	fresh   bool        // the process has just been started
	start   time.Time   // carries the monotonic clock

	probes   []probe
	failures int

	// Reused from sample to sample.
	due      []int
	devices  []Device
	readings []Reading
	rows     []row
	remarks  []remark
}

// probe is what is known of a device while it is sampled.
type probe struct {
	device      Device
	lost        bool
	failed      int // times in a row
	asked       time.Duration
	listed      time.Duration // when the processes were asked for
	everListed  bool
	seen        bool    // the device has given a figure of its memory
	before      float64 // what that first figure was
	capacity    float64 // the device's memory
	memoryNote  string
	processNote string
}

// After this many failures in a row a device is asked once a second only: a
// driver in trouble answers slowly, and to everybody.
const (
	patience   = 10
	retryAfter = time.Second
)

func newSampler(src Source, devices []Device, cfg Config) *sampler {
	n := len(devices)
	s := &sampler{
		src: src, want: setOf(cfg.Quantities...)&^setOf(ProcessMemory) | setOf(MemoryUsed), fresh: cfg.Fresh,
		probes: make([]probe, n), due: make([]int, 0, n), devices: make([]Device, 0, n),
		readings: make([]Reading, n), rows: make([]row, 0, n), remarks: make([]remark, 0, 3*n),
	}
	s.wanted = s.want.list()
	for i, d := range devices {
		s.probes[i].device = d
	}
	if cfg.Target.PID != 0 {
		s.watcher = newWatcher(cfg.Target, systemProcesses{})
	}
	return s
}

// quantities returns all that is recorded.
func (s *sampler) quantities() quantitySet {
	if s.watcher == nil {
		return s.want
	}
	return s.want | setOf(ProcessMemory)
}

// sample asks every device that is due. What it returns is valid until the next call.
func (s *sampler) sample() ([]row, []remark) {
	now := time.Since(s.start)
	s.due, s.devices, s.rows, s.remarks = s.due[:0], s.devices[:0], s.rows[:0], s.remarks[:0]
	for i := range s.probes {
		if p := &s.probes[i]; !p.lost && (p.failed < patience || now-p.asked >= retryAfter) {
			p.asked = now
			s.due = append(s.due, i)
			s.devices = append(s.devices, p.device)
		}
	}
	if len(s.due) == 0 {
		return nil, nil
	}
	readings := s.readings[:len(s.due)]
	s.src.Read(s.devices, s.wanted, readings)
	for k, i := range s.due {
		s.take(now, i, &readings[k])
	}
	return s.rows, s.remarks
}

func (s *sampler) take(now time.Duration, device int, r *Reading) {
	p := &s.probes[device]
	asked := s.want
	switch {
	case errors.Is(r.Err, ErrLost):
		s.lose(now, device, r.Err)
		return
	case r.Err != nil:
		s.failures++
		p.failed++
		s.note(now, device, MemoryUsed, &p.memoryNote, r.Err)
	default:
		p.failed = 0
		if _, ok := r.Value(MemoryUsed); !ok {
			s.note(now, device, MemoryUsed, &p.memoryNote, errNotSupported)
		}
		if total, ok := r.Value(MemoryTotal); ok && total > 0 && total != p.capacity {
			p.capacity = total
			s.remarks = append(s.remarks, remark{time: now, device: device, capacity: total})
		}
		if s.watcher != nil && s.listIsDue(now, p, r) {
			p.listed, p.everListed = now, true
			asked |= 1 << ProcessMemory
			s.readProcess(now, device, r)
		}
	}
	s.rows = append(s.rows, row{time: now, device: device, asked: asked, reading: r})
}

// listIsDue reports whether to ask for a device's processes: a second after the
// last time, and at first at once, but of a process that has just been started
// not before the device's memory changes, since until then it has none.
func (s *sampler) listIsDue(now time.Duration, p *probe, r *Reading) bool {
	if p.everListed {
		return now-p.listed >= processInterval
	}
	used, ok := r.Value(MemoryUsed)
	if !p.seen {
		p.seen, p.before = ok, used
	}
	return !s.fresh || used != p.before || now >= processInterval
}

func (s *sampler) readProcess(now time.Duration, device int, r *Reading) {
	p := &s.probes[device]
	memory, err := s.watcher.memory(s.src, p.device, r)
	if err == nil {
		r.Set(ProcessMemory, float64(memory))
		return
	}
	if !errors.Is(err, ErrUnknown) {
		s.failures++
	}
	s.note(now, device, ProcessMemory, &p.processNote, err)
}

// note says once why a quantity has no figure.
func (s *sampler) note(now time.Duration, device int, q Quantity, said *string, err error) {
	if text := err.Error(); text != *said {
		*said = text
		s.remarks = append(s.remarks, remark{time: now, device: device, quantity: q, text: text})
	}
}

func (s *sampler) lose(now time.Duration, device int, err error) {
	s.failures++
	s.probes[device].lost = true
	s.remarks = append(s.remarks, remark{time: now, device: device, text: err.Error(), ended: true})
}
