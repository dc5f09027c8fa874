// Package peak finds the moment when most memory is in use, while a tape runs forward and backward.
// It counts only tensors; package timeline asks an allocator about them.
package peak

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/timeline"
)

// alive follows what is in memory while a range of a tape's operations runs. Every size is in bytes
// on one device.
type alive struct {
	t          *tape.Tape
	begin, end int32
	bytes      int64 // in use now, without inputs, weights and gradients of parameters
	saved      int64 // the part of bytes that the backward pass still needs
	live       []bool
	savedBy    []int32 // for each storage, how many operations keep it for their backward pass
	dies       deaths
	dropped    int32 // the operations before this one keep nothing for which there is no backward pass
	peak       Peak

	gradients int64 // gradients of parameters in use now

	gathering *gathering

	inference bool
	drop      bool               // the caller does not hold the model's output
	log       *timeline.Timeline // records each allocation and free; may be nil
	handles   []int32            // handle of each storage in the log
}

func newAlive(t *tape.Tape, begin, end int32, inference, drop bool, log *timeline.Timeline) *alive {
	a := &alive{
		t: t, begin: begin, end: end, live: make([]bool, len(t.Storages)),
		dropped: begin, savedBy: t.Memory.Counts(len(t.Storages)), inference: inference, drop: drop, log: log,
	}
	a.dies = deathsOf(t, inference, drop)
	if log != nil {
		a.handles = t.Memory.Counts(len(t.Storages))
	}
	return a
}

// Peak is the largest sum that was seen, and where it was.
type Peak struct {
	Bytes, Saved, Gradients int64
	Op                      int32
	Backward                bool
}

func (a *alive) note(op int32, extra, gradients int64, backward bool) {
	if sum := a.bytes + extra + gradients; sum > a.peak.Bytes || a.peak.Bytes == 0 {
		a.peak = Peak{Bytes: sum, Saved: a.saved, Gradients: gradients, Op: op, Backward: backward}
	}
}

func (a *alive) start(id int32) {
	s := &a.t.Storages[id]
	if !a.live[id] && !s.Input && !s.Part {
		a.live[id] = true
		a.bytes += s.Bytes
		if a.log != nil {
			a.handles[id] = a.log.Alloc(s.Bytes)
		}
	}
}

// expire ends a storage's life unless an operation keeps it.
func (a *alive) expire(id int32) {
	if a.savedBy[id] == 0 {
		a.stop(id)
	}
}

func (a *alive) stop(id int32) {
	if a.live[id] {
		a.live[id] = false
		a.bytes -= a.t.Storages[id].Bytes
		if a.log != nil {
			a.log.Free(a.handles[id])
		}
	}
}

// held returns the handles, in the log, of what the loop's code still holds of the model's output.
// Everything else in use ends.
func (a *alive) held() []int32 {
	var handles []int32
	for id, live := range a.live {
		switch {
		case !live:
		case a.returns(int32(id)):
			handles = append(handles, a.handles[id])
		default:
			a.stop(int32(id))
		}
	}
	return handles
}

// deaths lists the storages by the last operation that uses them: first[i] is one of operation i,
// and next another one of the same operation. Both count from 1; 0 ends the list. The model's
// output is not in it.
type deaths struct{ first, next []int32 }

func deathsOf(t *tape.Tape, inference, drop bool) deaths {
	d := deaths{t.Memory.Counts(len(t.Ops)), t.Memory.Counts(len(t.Storages))}
	for id := range t.Storages {
		s := &t.Storages[id]
		at := s.Last
		if inference {
			at = s.LastRun
		}
		if !s.Input && int(at) < len(t.Ops) && (drop || !Returns(t, int32(id), inference)) {
			d.next[id] = d.first[at]
			d.first[at] = int32(id) + 1
		}
	}
	return d
}

// returns reports whether the model's caller holds a storage.
func (a *alive) returns(id int32) bool { return !a.drop && Returns(a.t, id, a.inference) }

// Returns reports whether the model's caller holds a storage: the model's output, what its loss
// read and, in training, what these keep alive.
func Returns(t *tape.Tape, id int32, inference bool) bool {
	out := t.Home(t.Out.Storage())
	if inference { // a dropout at the end returns its input
		out = running(t, out)
	}
	return id == out || slices.Contains(t.Answer, id) || t.Storages[id].Lingers && !inference
}

// of calls f for each storage whose last use is operation i.
func (d deaths) of(i int32, f func(id int32)) {
	for id := d.first[i]; id != 0; id = d.next[id-1] {
		f(id - 1)
	}
}

// Inference runs the operations without a backward pass.
func Inference(t *tape.Tape, begin, end int32, log *timeline.Timeline) (Peak, timeline.Passes) {
	a := newAlive(t, begin, end, true, false, log)
	a.enter()
	for i := begin; i < end; i++ {
		o := &t.Ops[i]
		if !o.TrainingOnly {
			for _, id := range t.Refs[o.In:o.Keep] {
				a.start(running(t, id))
			}
			a.start(running(t, o.Out))
			for _, id := range t.Refs[o.Keep:o.End] {
				if t.Storages[id].Cached {
					a.start(id)
				}
			}
			extra := o.Workspace + o.Forward
			if !o.InPlace {
				extra += ownBytes(t, o)
			}
			a.note(i, extra, 0, false)
			log.Temporary(extra)
		}
		a.dies.of(i, a.stop)
	}
	if log == nil {
		return a.peak, timeline.Passes{}
	}
	held := a.held()
	return a.peak, timeline.Passes{Events: log.Events, Turn: len(log.Events), Handles: log.Next, Held: held}
}

// running returns the storage that is used in place of id in inference.
func running(t *tape.Tape, id int32) int32 {
	for t.Storages[id].Alias >= 0 {
		id = t.Storages[id].Alias
	}
	return id
}

// ownBytes returns the size of the tensors that an operation makes for itself.
func ownBytes(t *tape.Tape, o *tape.Recorded) int64 {
	var n int64
	for _, id := range t.Refs[o.Keep:o.End] {
		if t.Storages[id].Own && !t.Storages[id].Cached {
			n += t.Storages[id].Bytes
		}
	}
	return n
}

// enter adds what the operations before begin made for those after it.
func (a *alive) enter() {
	if a.begin == 0 {
		return
	}
	made := make([]bool, len(a.t.Storages))
	for i := a.begin; i < a.end; i++ {
		o := &a.t.Ops[i]
		for _, id := range a.t.Refs[o.In:o.Keep] {
			if id = a.t.Home(id); !made[id] {
				a.begins(id)
			}
		}
		made[o.Out] = true
	}
}

// begins adds a storage, and counts it as saved if an operation keeps it.
func (a *alive) begins(id int32) {
	id = a.t.Home(id)
	if s := &a.t.Storages[id]; !a.live[id] && !s.Input {
		a.start(id)
		if a.savedBy[id] > 0 {
			a.saved += s.Bytes
		}
	}
}
