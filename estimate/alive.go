package estimate

import "slices"

// alive follows what is in memory while a stretch of a tape runs. Every size is
// in bytes of one device.
type alive struct {
	t          *Tape
	begin, end int32
	bytes      int64 // alive now, without inputs, weights and gradients of parameters
	saved      int64 // the part of it that the backward pass still needs
	live       []bool
	keepers    []int32 // operations that still keep each storage
	dies       deaths
	peak       peak

	gradients int64 // of parameters, alive now

	inference bool
	drop      bool      // nobody holds the model's output
	log       *timeline // what happens when; may be nil
	handles   []int32   // of the storages, in the log
}

func newAlive(t *Tape, begin, end int32, inference, drop bool, log *timeline) *alive {
	a := &alive{
		t: t, begin: begin, end: end, live: make([]bool, len(t.storages)),
		keepers: t.memory.counts(len(t.storages)), inference: inference, drop: drop, log: log,
	}
	a.dies = t.deaths(inference, drop)
	if log != nil {
		a.handles = t.memory.counts(len(t.storages))
	}
	return a
}

// peak is the largest sum that was seen, and where.
type peak struct {
	bytes, saved, gradients int64
	op                      int32
	backward                bool
}

func (a *alive) note(op int32, extra, gradients int64, backward bool) {
	if sum := a.bytes + extra + gradients; sum > a.peak.bytes || a.peak.bytes == 0 {
		a.peak = peak{bytes: sum, saved: a.saved, gradients: gradients, op: op, backward: backward}
	}
}

func (a *alive) start(id int32) {
	s := &a.t.storages[id]
	if !a.live[id] && !s.input && !s.part {
		a.live[id] = true
		a.bytes += s.bytes
		if a.log != nil {
			a.handles[id] = a.log.alloc(s.bytes)
		}
	}
}

// expire lets a storage die unless an operation keeps it.
func (a *alive) expire(id int32) {
	if a.keepers[id] == 0 {
		a.stop(id)
	}
}

func (a *alive) stop(id int32) {
	if a.live[id] {
		a.live[id] = false
		a.bytes -= a.t.storages[id].bytes
		if a.log != nil {
			a.log.free(a.handles[id])
		}
	}
}

// held is what of the model's output the loop's code still holds, as handles of the log;
// what else is alive dies.
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

// deaths lists the storages by the operation that is the last to use them: first
// holds one of each operation, and next another of the same, counted from 1. The
// model's output lives on.
type deaths struct{ first, next []int32 }

func (t *Tape) deaths(inference, drop bool) deaths {
	d := deaths{t.memory.counts(len(t.ops)), t.memory.counts(len(t.storages))}
	for id := range t.storages {
		s := &t.storages[id]
		at := s.last
		if inference {
			at = s.lastRun
		}
		if !s.input && int(at) < len(t.ops) && (drop || !t.returns(int32(id), inference)) {
			d.next[id] = d.first[at]
			d.first[at] = int32(id) + 1
		}
	}
	return d
}

// returns reports whether the model's caller holds a storage.
func (a *alive) returns(id int32) bool { return !a.drop && a.t.returns(id, a.inference) }

// returns reports whether the model's caller sees a storage: its output, and what its loss
// read. In training it holds by them what lingers.
func (t *Tape) returns(id int32, inference bool) bool {
	return id == t.home(t.out.storage) || slices.Contains(t.answer, id) || t.storages[id].lingers && !inference
}

// of calls f for each storage that operation i is the last to use.
func (d deaths) of(i int32, f func(id int32)) {
	for id := d.first[i]; id != 0; id = d.next[id-1] {
		f(id - 1)
	}
}

// inference runs the operations without a backward pass.
func inference(t *Tape, begin, end int32, log *timeline) (peak, passes) {
	a := newAlive(t, begin, end, true, false, log)
	a.enter()
	for i := begin; i < end; i++ {
		o := &t.ops[i]
		if !o.trainingOnly {
			for _, id := range t.refs[o.in:o.keep] {
				a.start(t.running(id))
			}
			a.start(t.running(o.out))
			for _, id := range t.refs[o.keep:o.end] {
				if t.storages[id].cached {
					a.start(id)
				}
			}
			extra := o.workspace
			if !o.inPlace {
				extra += t.ownBytes(o)
			}
			a.note(i, extra, 0, false)
			log.temporary(extra)
		}
		a.dies.of(i, a.stop)
	}
	if log == nil {
		return a.peak, passes{}
	}
	held := a.held()
	return a.peak, passes{events: log.events, turn: len(log.events), handles: log.next, held: held}
}

// running is the storage that serves for id in inference.
func (t *Tape) running(id int32) int32 {
	for t.storages[id].alias >= 0 {
		id = t.storages[id].alias
	}
	return id
}

// ownBytes is the size of what an operation makes for itself.
func (t *Tape) ownBytes(o *op) int64 {
	var n int64
	for _, id := range t.refs[o.keep:o.end] {
		if t.storages[id].own && !t.storages[id].cached {
			n += t.storages[id].bytes
		}
	}
	return n
}

// enter makes alive what the operations before begin made for those after it.
func (a *alive) enter() {
	if a.begin == 0 {
		return
	}
	made := make([]bool, len(a.t.storages))
	for i := a.begin; i < a.end; i++ {
		o := &a.t.ops[i]
		for _, id := range a.t.refs[o.in:o.keep] {
			if id = a.t.home(id); !made[id] {
				a.begins(id)
			}
		}
		made[o.out] = true
	}
}

// begins makes a storage alive, and saved if an operation keeps it.
func (a *alive) begins(id int32) {
	id = a.t.home(id)
	if s := &a.t.storages[id]; !a.live[id] && !s.input {
		a.start(id)
		if a.keepers[id] > 0 {
			a.saved += s.bytes
		}
	}
}
