package attach

import (
	"slices"
	"time"
)

// maxContexts bounds a thread's stack of contexts.
const maxContexts = 1 << 10

// pushed makes a context current.
func (t *thread) pushed(context uint64) {
	if len(t.contexts) < maxContexts {
		t.contexts = append(t.contexts, context)
	}
}

// destroyed ends a context: what was allocated in it is gone.
func (p *process) destroyed(context uint64, t *thread, now time.Duration) {
	device, known := p.contexts[context]
	if !known {
		p.doubt(now, "a context was destroyed that was made before it was watched")
		return
	}
	delete(p.contexts, context)
	contexts := slices.Clone(t.contexts)
	if t.current() == context {
		t.contexts = t.contexts[:len(t.contexts)-1]
	}
	back := p.take(now, func(b *buffer) bool { return b.context == context })
	t.undo = func() {
		p.contexts[context], t.contexts = device, contexts
		back()
	}
}

func (p *process) retained(d deviceID, context uint64) {
	its := p.primary[d]
	if its == nil {
		its = new(primary)
		p.primary[d] = its
	}
	its.context = context
	its.retained++
	p.contexts[context] = d
}

// primaryReleased ends a device's primary context when nobody holds it any more.
func (p *process) primaryReleased(d deviceID, reset bool, t *thread, now time.Duration) {
	its := p.primary[d]
	if its == nil {
		if reset {
			p.doubt(now, "a primary context was reset that was made before it was watched")
		}
		return
	}
	before := *its
	its.retained--
	if reset {
		its.retained = 0
	}
	t.undo = func() { *its = before }
	if its.retained > 0 {
		return
	}
	its.retained = 0
	if p.late != nil && !reset {
		p.doubt(now, "a primary context was released that may have been retained before it was watched")
		return
	}
	back := p.take(now, func(b *buffer) bool { return b.context == before.context })
	t.undo = func() { *its = before; back() }
}
