package attach

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// deviceFor returns the device that a call of this thread allocates on.
func (p *process) deviceFor(f event.Function, e *event.Event, t *thread) deviceID {
	switch {
	case f.Block:
		return blocksOf + deviceID(max(0, int8(e.Args[f.Device])))
	case f.Memory == alloc.PinnedMemory:
		return hostMemory
	case f.Host:
		return libraryMemory
	case f.Library != "" && t.current() == 0: // a library may allocate without asking the driver
		if len(p.contexts) == 0 && !p.prior.mayHaveContexts() {
			return libraryMemory
		}
		return p.onlyDevice()
	}
	return p.deviceOf(t.current())
}

// onlyDevice returns the device that all contexts are on.
func (p *process) onlyDevice() deviceID {
	only := p.prior.device()
	for _, d := range p.contexts {
		if only != unknownDevice && only != d {
			return unknownDevice
		}
		only = d
	}
	return only
}

func (p *process) allocated(f event.Function, e *event.Event, t *thread, stack tables.StackID, now time.Duration) {
	s := p.source(p.deviceFor(f, e, t))
	at := e.Out
	switch f.Effect {
	case event.Registers:
		at = e.Args[0]
	case event.LibraryReports:
		at = e.Args[f.Address]
	}
	stream := alloc.Stream(0)
	if f.Stream != 0 {
		stream = alloc.Stream(e.Args[f.Stream])
	}
	size, kind := sizeOf(f, e), f.Kind
	if len(f.Uses) > 0 {
		kind = f.KindFor(p.symbols.Stacks().Stack(stack))
	}
	b := &buffer{
		site: s.ledger.site(tensorKey{kind, f.Memory, size}, stack, s.ledger.stream(stream)), ledger: &s.ledger, ptr: alloc.Ptr(at), size: size,
		context: t.current(), foreign: f.Effect == event.Registers || f.Memory == alloc.ImportedMemory, block: f.Block,
	}
	if f.Effect == event.Creates || f.Effect == event.ImportsPhysical {
		b.references, b.context = 1, 0
		p.physical[at] = b
	}
	if f.Block {
		b.context = 0 // PyTorch reports when it frees a block
	}
	if before := p.live[b.key()]; before != nil { // the driver reused the address: the free was not seen
		p.warn(now, "an address was given again of which no free was seen")
		before.ledger.remove(before, now, freedAction(before))
	}
	p.live[b.key()] = b
	action := mem.Allocated
	if b.foreign {
		action = mem.Registered
	}
	s.ledger.add(b, now, action)
}

func freedAction(b *buffer) mem.Action {
	if b.foreign {
		return mem.Unregistered
	}
	return mem.Freed
}

// removeBuffer removes a buffer, and returns what restores it.
func (p *process) removeBuffer(b *buffer, now time.Duration) (undo func()) {
	delete(p.live, b.key())
	b.ledger.remove(b, now, freedAction(b))
	return func() {
		if p.live[b.key()] == nil {
			p.live[b.key()] = b
			b.ledger.add(b, now, mem.FreeFailed)
		}
	}
}

// removeMatching removes the buffers that of selects, in order of allocation, and returns what
// restores them.
func (p *process) removeMatching(now time.Duration, of func(*buffer) bool) (undo func()) {
	var taken []*buffer
	for _, b := range p.live {
		if of(b) {
			taken = append(taken, b)
		}
	}
	slices.SortFunc(taken, func(a, b *buffer) int { return cmp.Compare(a.seq, b.seq) })
	undos := make([]func(), 0, len(taken))
	for _, b := range taken {
		undos = append(undos, p.removeBuffer(b, now))
	}
	return func() {
		for _, undo := range undos {
			undo()
		}
	}
}

func (p *process) freed(f event.Function, e *event.Event, t *thread, now time.Duration) {
	at := e.Args[f.Address]
	if at == 0 {
		return
	}
	b := p.live[liveKey{alloc.Ptr(at), f.Block}]
	if b == nil && f.Without != "" {
		return // the function that called this one may have reported the free
	}
	if b == nil || p.physical[at] == b {
		p.unknown++
		t.undo = func() { p.unknown-- }
		return
	}
	t.undo = p.removeBuffer(b, now)
}

// released removes a handle of physical memory. The memory stays while it is mapped.
func (p *process) released(handle uint64, t *thread, now time.Duration) {
	b := p.physical[handle]
	if b == nil {
		p.unknown++
		t.undo = func() { p.unknown-- }
		return
	}
	t.undo = p.dropReferences(b, 1, now)
}

// dropReferences removes n references to physical memory, and with the last one the memory.
func (p *process) dropReferences(b *buffer, n int, now time.Duration) (undo func()) {
	b.references -= n
	if b.references > 0 || p.live[b.key()] != b { // or its handle was reused, and it was removed then
		return func() { b.references += n }
	}
	delete(p.physical, uint64(b.ptr))
	back := p.removeBuffer(b, now)
	return func() {
		b.references += n
		p.physical[uint64(b.ptr)] = b
		back()
	}
}

// unmapped removes the mappings in a range.
func (p *process) unmapped(at, size uint64, t *thread, now time.Duration) {
	var undos []func()
	for from, m := range p.mapped {
		if at <= from && from-at < size {
			delete(p.mapped, from)
			back := p.dropReferences(m.of, 1, now)
			undos = append(undos, func() { p.mapped[from] = m; back() })
		}
	}
	t.undo = func() {
		for _, undo := range undos {
			undo()
		}
	}
}

// sizeOf returns the size that a call asked for.
func sizeOf(f event.Function, e *event.Event) alloc.Bytes {
	size := e.Args[f.Size]
	switch f.Effect {
	case event.AllocatesPitched: // the pitch is known after a success
		size = product(max(e.Pitch, e.Args[2]), e.Args[3])
	case event.AllocatesArray: // CUDA_ARRAY_DESCRIPTOR
		size = product(e.Desc[0], max(1, e.Desc[1]), elementSize(e.Desc[2]))
	case event.AllocatesArray3D: // CUDA_ARRAY3D_DESCRIPTOR
		size = product(e.Desc[0], max(1, e.Desc[1]), max(1, e.Desc[2]), elementSize(e.Desc[3]))
	case event.AllocatesMipmapped:
		size = mipmappedSize(e.Desc, uint32(e.Args[2]))
	case event.Imports, event.ImportsPhysical:
		size = 0
	}
	return alloc.Bytes(min(size, math.MaxInt64))
}

// mipmappedSize sums the levels of an array: each has half the edges of the one before, and as many
// layers or faces of a cube.
func mipmappedSize(desc [5]uint64, levels uint32) (size uint64) {
	const layered, cubemap = 1, 4
	each := desc[4]&(layered|cubemap) == 0
	for level := range min(levels, 64) {
		depth := desc[2]
		if each {
			depth >>= level
		}
		of := product(max(1, desc[0]>>level), max(1, desc[1]>>level), max(1, depth), elementSize(desc[3]))
		if size += of; size < of {
			return math.MaxUint64
		}
	}
	return size
}

// elementSize returns the bytes of one element of an array, given its CUarray_format and, in the
// upper half, its number of channels. It returns 0 for a format without a fixed size, such as those
// of videos.
func elementSize(formatAndChannels uint64) uint64 {
	channels := formatAndChannels >> 32
	switch uint32(formatAndChannels) {
	case 0x01, 0x08: // 8 bits
		return channels
	case 0x02, 0x09, 0x10: // 16 bits, and half
		return 2 * channels
	case 0x03, 0x0a, 0x20: // 32 bits, and float
		return 4 * channels
	}
	return 0
}

// product multiplies, and saturates at the largest number.
func product(factors ...uint64) uint64 {
	n := uint64(1)
	for _, f := range factors {
		high, low := bits.Mul64(n, f)
		if high != 0 {
			return math.MaxUint64
		}
		n = low
	}
	return n
}

// maxContexts bounds a thread's stack of contexts.
const maxContexts = 1 << 10

// pushed makes a context current.
func (t *thread) pushed(context uint64) {
	if len(t.contexts) < maxContexts {
		t.contexts = append(t.contexts, context)
	}
}

// destroyed ends a context, and frees what was allocated in it.
func (p *process) destroyed(context uint64, t *thread, now time.Duration) {
	device, known := p.contexts[context]
	if !known {
		p.warn(now, "a context was destroyed that was made before it was watched")
		return
	}
	delete(p.contexts, context)
	contexts := slices.Clone(t.contexts)
	if t.current() == context {
		t.contexts = t.contexts[:len(t.contexts)-1]
	}
	back := p.removeMatching(now, func(b *buffer) bool { return b.context == context })
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

// primaryReleased ends a device's primary context with its last reference.
func (p *process) primaryReleased(d deviceID, reset bool, t *thread, now time.Duration) {
	its := p.primary[d]
	if its == nil {
		if reset {
			p.warn(now, "a primary context was reset that was made before it was watched")
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
	if p.prior != nil && !reset {
		p.warn(now, "a primary context was released that may have been retained before it was watched")
		return
	}
	back := p.removeMatching(now, func(b *buffer) bool { return b.context == before.context })
	t.undo = func() { *its = before; back() }
}
