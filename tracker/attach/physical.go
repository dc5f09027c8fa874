package attach

import (
	"time"
)

// released takes a handle of physical memory away; the memory lives on while it is mapped.
func (p *process) released(handle uint64, t *thread, now time.Duration) {
	b := p.physical[handle]
	if b == nil {
		p.unknown++
		t.undo = func() { p.unknown-- }
		return
	}
	t.undo = p.drop(b, 1, now)
}

// drop takes holds of physical memory away, and with the last one the memory.
func (p *process) drop(b *buffer, n int, now time.Duration) (undo func()) {
	b.held -= n
	if b.held > 0 {
		return func() { b.held += n }
	}
	delete(p.physical, uint64(b.ptr))
	back := p.takeOne(b, now)
	return func() {
		b.held += n
		p.physical[uint64(b.ptr)] = b
		back()
	}
}

// unmapped takes the mappings in a range away.
func (p *process) unmapped(at, size uint64, t *thread, now time.Duration) {
	var undos []func()
	for from, m := range p.mapped {
		if at <= from && from-at < size {
			delete(p.mapped, from)
			back := p.drop(m.of, 1, now)
			undos = append(undos, func() { p.mapped[from] = m; back() })
		}
	}
	t.undo = func() {
		for _, undo := range undos {
			undo()
		}
	}
}
