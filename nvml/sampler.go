package nvml

import (
	"context"
	"errors"
	"fmt"
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
	notes    []seriesNote
}

// probe is what is known of a device while it is sampled.
type probe struct {
	device      Device
	lost        bool
	failed      int // times in a row
	asked       time.Duration
	listed      time.Duration // when the processes were asked for
	everListed  bool
	seen        bool    // the device has given a value of its memory
	before      float64 // what that first value was
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
		readings: make([]Reading, n), rows: make([]row, 0, n), notes: make([]seriesNote, 0, 3*n),
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
func (s *sampler) sample() ([]row, []seriesNote) {
	now := time.Since(s.start)
	s.due, s.devices, s.rows, s.notes = s.due[:0], s.devices[:0], s.rows[:0], s.notes[:0]
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
	return s.rows, s.notes
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
			s.notes = append(s.notes, seriesNote{time: now, device: device, capacity: total})
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

// note says once why a quantity has no value.
func (s *sampler) note(now time.Duration, device int, q Quantity, said *string, err error) {
	if text := err.Error(); text != *said {
		*said = text
		s.notes = append(s.notes, seriesNote{time: now, device: device, quantity: q, text: text})
	}
}

func (s *sampler) lose(now time.Duration, device int, err error) {
	s.failures++
	s.probes[device].lost = true
	s.notes = append(s.notes, seriesNote{time: now, device: device, text: err.Error(), ended: true})
}

const (
	// answerLimit is how long Start and Stop wait for an answer.
	answerLimit = 500 * time.Millisecond
	// longAnswer is how long an answer may take before that is a gap, and the longest rest.
	longAnswer = time.Second
)

// pace decides when samples are taken. Its times count from the recording's start.
type pace struct {
	asked    time.Duration // when the last sample was begun
	next     time.Duration // when the next one is due
	latest   time.Duration // time of the last row that was kept
	unheard  bool          // the current answer takes so long that a gap was recorded for it
	samples  int
	interval time.Duration // time between samples, longer if the driver answers slowly
}

// run samples at every tick, but rests for as long as the last sample took: a
// slow answer holds up the program that is watched, too.
func (r *Recorder) run(ctx context.Context) {
	defer close(r.done)
	ticker := time.NewTicker(r.cfg.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			r.end()
			return
		case a := <-r.asker.answers:
			r.take(a)
		case <-ticker.C:
			r.tick()
		}
	}
}

func (r *Recorder) tick() {
	now, p := r.now(), &r.pace
	switch {
	case r.asker.waiting:
		if !p.unheard && now-p.asked >= longAnswer {
			p.unheard = true
			r.gap(now, noAnswerIn(now-p.asked))
		}
	case now >= p.next:
		r.ask()
	}
}

// ask begins a sample. Where it comes so late that another one should have been
// taken before it, there is a gap: once, however long.
func (r *Recorder) ask() {
	now, p := r.now(), &r.pace
	if late := now - p.asked; p.samples > 0 && !p.unheard && late >= 2*p.interval-p.interval/4 {
		r.gap(max(p.latest, p.asked+p.interval), "")
	}
	p.asked, p.unheard = now, false
	p.samples++
	r.asker.ask()
}

// take keeps an answer, and says when the next sample is due. An answer that comes
// after a gap is of the time when it came.
func (r *Recorder) take(a answer) {
	r.asker.waiting = false
	now, p := r.now(), &r.pace
	took := now - p.asked
	p.next = now + min(took, longAnswer)
	if took < r.cfg.Interval/2 {
		p.next = 0 // at the next tick
	}
	// A sample begins at a tick.
	p.interval = max(1, (p.next-p.asked+r.cfg.Interval-1)/r.cfg.Interval) * r.cfg.Interval
	if p.unheard {
		for i := range a.rows {
			a.rows[i].time = now
		}
		for i := range a.notes {
			a.notes[i].time = now
		}
	}
	r.mu.Lock()
	r.store.failures = a.failures
	r.mu.Unlock()
	r.keepRows(a.rows, a.notes)
}

// end takes the last sample. One that is under way is the last.
func (r *Recorder) end() {
	if !r.asker.waiting {
		r.ask()
	}
	if !r.await(answerLimit) {
		now := r.now()
		r.gap(now, noAnswerIn(now-r.pace.asked)+" when the recording ended")
	}
	close(r.asker.asks)
}

// await waits for the answer under way, and reports whether it came.
func (r *Recorder) await(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a := <-r.asker.answers:
		r.take(a)
		return true
	case <-timer.C:
		return false
	}
}

// gap records that no device has a value at a time, and why, unless why is empty.
func (r *Recorder) gap(at time.Duration, why string) {
	var rows []row
	var notes []seriesNote
	for i := range r.store.tracks {
		if r.store.tracks[i].ended {
			continue
		}
		rows = append(rows, row{time: at, device: i, asked: r.sampler.want, reading: new(Reading)})
		if why != "" {
			notes = append(notes, seriesNote{time: at, device: i, quantity: MemoryUsed, text: why})
		}
	}
	r.keepRows(rows, notes)
}

func noAnswerIn(d time.Duration) string {
	return fmt.Sprintf("the driver has not answered for %.1f s", d.Seconds())
}

func (r *Recorder) now() time.Duration { return time.Since(r.sampler.start) }

// keepRows stores rows and writes them to the files.
func (r *Recorder) keepRows(rows []row, notes []seriesNote) {
	r.mu.Lock()
	for _, row := range rows {
		r.store.add(row)
		r.pace.latest = row.time
	}
	for _, m := range notes {
		r.store.note(m)
	}
	r.mu.Unlock()
	for _, f := range r.files {
		if err := f.write(rows, notes); err != nil {
			r.mu.Lock()
			r.keep(err)
			r.mu.Unlock()
		}
	}
}

// asker asks the devices in a goroutine of its own, for nothing else may wait for it: a call into a
// driver that hangs cannot be stopped.
type asker struct {
	asks    chan struct{}
	answers chan answer
	waiting bool // an answer is still to come; only the goroutine that asks uses it
}

// answer is what a sampler returned. It is valid until the next ask.
type answer struct {
	rows     []row
	notes    []seriesNote
	failures int
}

func newAsker() *asker {
	return &asker{asks: make(chan struct{}, 1), answers: make(chan answer, 1)}
}

func (a *asker) run(s *sampler) {
	for range a.asks {
		rows, notes := s.sample()
		a.answers <- answer{rows, notes, s.failures}
	}
}

// ask begins a sample. No other may be under way.
func (a *asker) ask() {
	a.waiting = true
	a.asks <- struct{}{}
}

func (a *asker) pending() bool { return a.waiting }
