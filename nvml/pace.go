package nvml

import (
	"context"
	"fmt"
	"time"
)

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
		for i := range a.remarks {
			a.remarks[i].time = now
		}
	}
	r.mu.Lock()
	r.store.failures = a.failures
	r.mu.Unlock()
	r.keepRows(a.rows, a.remarks)
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

// gap records that no device has a figure at a time, and why, unless why is empty.
func (r *Recorder) gap(at time.Duration, why string) {
	var rows []row
	var remarks []remark
	for i := range r.store.tracks {
		if r.store.tracks[i].ended {
			continue
		}
		rows = append(rows, row{time: at, device: i, asked: r.sampler.want, reading: new(Reading)})
		if why != "" {
			remarks = append(remarks, remark{time: at, device: i, quantity: MemoryUsed, text: why})
		}
	}
	r.keepRows(rows, remarks)
}

func noAnswerIn(d time.Duration) string {
	return fmt.Sprintf("the driver has not answered for %.1f s", d.Seconds())
}

func (r *Recorder) now() time.Duration { return time.Since(r.sampler.start) }

// keepRows stores rows and writes them to the files.
func (r *Recorder) keepRows(rows []row, remarks []remark) {
	r.mu.Lock()
	for _, row := range rows {
		r.store.add(row)
		r.pace.latest = row.time
	}
	for _, m := range remarks {
		r.store.remark(m)
	}
	r.mu.Unlock()
	for _, f := range r.files {
		if err := f.write(rows, remarks); err != nil {
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
	remarks  []remark
	failures int
}

func newAsker() *asker {
	return &asker{asks: make(chan struct{}, 1), answers: make(chan answer, 1)}
}

func (a *asker) run(s *sampler) {
	for range a.asks {
		rows, remarks := s.sample()
		a.answers <- answer{rows, remarks, s.failures}
	}
}

// ask begins a sample. No other may be under way.
func (a *asker) ask() {
	a.waiting = true
	a.asks <- struct{}{}
}

func (a *asker) pending() bool { return a.waiting }
