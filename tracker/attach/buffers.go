package attach

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// place is the device that a call of this thread allocates on.
func (p *process) place(f function, t *thread) deviceID {
	switch {
	case f.kind == Pinned:
		return hostMemory
	case f.library != "" && t.current() == 0: // a library gives what it has, without asking the driver
		return p.onlyDevice()
	}
	return p.deviceOf(t.current())
}

// onlyDevice is the device that all contexts are on.
func (p *process) onlyDevice() deviceID {
	only := p.late.device()
	for _, d := range p.contexts {
		if only != unknownDevice && only != d {
			return unknownDevice
		}
		only = d
	}
	return only
}

func (p *process) allocated(f function, e *event, t *thread, stack snapshot.StackID, now time.Duration) {
	s := p.source(p.place(f, t))
	at := e.out
	if f.effect == registers {
		at = e.args[0]
	}
	stream := alloc.Stream(0)
	if f.stream != 0 {
		stream = alloc.Stream(e.args[f.stream])
	}
	size := sizeOf(f, e)
	b := &buffer{
		site: s.ledger.site(f.kind, size, stack, s.ledger.stream(stream)), home: &s.ledger, ptr: alloc.Ptr(at), size: size,
		context: t.current(), foreign: f.effect == registers || f.kind == Imported,
	}
	if f.effect == creates || f.effect == importsPhysical {
		b.held, b.context = 1, 0
		p.physical[at] = b
	}
	if before := p.live[b.ptr]; before != nil { // the driver gave the address again: its free was not seen
		p.doubt(now, "an address was given again of which no free was seen")
		before.home.remove(before, now, freedAction(before))
	}
	p.live[b.ptr] = b
	action := snapshot.Allocated
	if b.foreign {
		action = snapshot.Registered
	}
	s.ledger.add(b, now, action)
}

func freedAction(b *buffer) snapshot.Action {
	if b.foreign {
		return snapshot.Unregistered
	}
	return snapshot.Freed
}

// takeOne removes a buffer, and returns what puts it back.
func (p *process) takeOne(b *buffer, now time.Duration) (undo func()) {
	delete(p.live, b.ptr)
	b.home.remove(b, now, freedAction(b))
	return func() {
		if p.live[b.ptr] == nil {
			p.live[b.ptr] = b
			b.home.add(b, now, snapshot.FreeFailed)
		}
	}
}

// take removes the buffers of which it is true, in the order of their allocation.
func (p *process) take(now time.Duration, of func(*buffer) bool) (undo func()) {
	var taken []*buffer
	for _, b := range p.live {
		if of(b) {
			taken = append(taken, b)
		}
	}
	slices.SortFunc(taken, func(a, b *buffer) int { return cmp.Compare(a.seq, b.seq) })
	undos := make([]func(), 0, len(taken))
	for _, b := range taken {
		undos = append(undos, p.takeOne(b, now))
	}
	return func() {
		for _, undo := range undos {
			undo()
		}
	}
}

func (p *process) freed(at uint64, t *thread, now time.Duration) {
	if at == 0 {
		return
	}
	b := p.live[alloc.Ptr(at)]
	if b == nil || p.physical[at] == b {
		p.unknown++
		t.undo = func() { p.unknown-- }
		return
	}
	t.undo = p.takeOne(b, now)
}
