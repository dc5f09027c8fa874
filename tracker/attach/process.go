package attach

import (
	"fmt"
	"math"
	"math/bits"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// process is what is known of one process: it turns events into changes of the ledgers.
// The watcher's reader alone uses it, with the lock where it changes a ledger.
type process struct {
	w       *Watcher
	origin  snapshot.Origin
	late    *earlier // it ran before it was watched; nil if not
	stacks  *stackTable
	symbols *symbolizer
	sources map[deviceID]*Source

	live     map[alloc.Ptr]*buffer
	physical map[uint64]*buffer // by handle, while held
	mapped   map[uint64]mapped  // by address

	contexts map[uint64]deviceID
	primary  map[deviceID]*primary
	threads  map[uint32]*thread
}

// mapped is physical memory at an address.
type mapped struct {
	size uint64
	of   *buffer
}

// primary is a device's primary context.
type primary struct {
	context  uint64
	retained int
}

// thread is what a thread of the process is doing.
type thread struct {
	contexts []uint64 // the current one is the last
	undo     func()   // puts back what the call that it is in has taken; nil if nothing
}

func newProcess(w *Watcher, pid int, late *earlier) *process {
	p := &process{
		w: w, late: late,
		stacks:  &stackTable{max: w.cfg.MaxStacks, ids: make(map[string]snapshot.StackID)},
		sources: make(map[deviceID]*Source),
	}
	p.begin(pid)
	return p
}

// begin forgets everything but the ledgers: an exec replaces the whole program.
func (p *process) begin(pid int) {
	before := p.w.births[uint32(pid)]
	if p.origin = originOf(pid); p.origin.Program == "" && before.origin.PID != 0 {
		p.origin = before.origin
	}
	p.stacks.forget()
	p.symbols = newSymbolizer(pid, before.maps, p.stacks.forget)
	p.live, p.physical, p.mapped = make(map[alloc.Ptr]*buffer), make(map[uint64]*buffer), make(map[uint64]mapped)
	p.contexts, p.primary, p.threads = make(map[uint64]deviceID), make(map[deviceID]*primary), make(map[uint32]*thread)
}

func originOf(pid int) snapshot.Origin {
	o := snapshot.Origin{PID: pid}
	o.Host, _ = os.Hostname()
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil {
		o.Program = path.Base(strings.TrimSuffix(exe, " (deleted)"))
	}
	return o
}

// source returns the ledger of a device.
func (p *process) source(d deviceID) *Source {
	s := p.sources[d]
	if s == nil {
		s = &Source{
			w: p.w, now: time.Now, origin: p.origin, device: d,
			ledger: newLedger(p.stacks, p.w.cfg.MaxEvents),
			growth: snapshot.NewFollower(warmup), before: p.late.on(d),
		}
		p.sources[d] = s
		p.w.keep(s)
	}
	return s
}

func (p *process) thread(tid uint32) *thread {
	t := p.threads[tid]
	if t == nil {
		t = new(thread)
		p.threads[tid] = t
	}
	return t
}

// current is the thread's current context, 0 if it is not known.
func (t *thread) current() uint64 {
	if len(t.contexts) == 0 {
		return 0
	}
	return t.contexts[len(t.contexts)-1]
}

func (p *process) deviceOf(context uint64) deviceID {
	if d, ok := p.contexts[context]; ok {
		return d
	}
	return p.late.device()
}

// exec ends the program that was there, and with it what it had of the driver.
func (p *process) exec(now time.Duration) {
	p.w.mu.Lock()
	p.take(now, func(*buffer) bool { return true })
	p.w.mu.Unlock()
	p.begin(p.origin.PID)
}

// end stops the clock of the sources: nothing gets older any more. The caller holds the lock.
func (p *process) end(now time.Duration) {
	at := p.w.start.Add(now)
	for _, s := range p.sources {
		s.now, s.ended = func() time.Time { return at }, true
		s.wake()
	}
}

// call applies a call of a function of the driver.
func (p *process) call(e *event, now time.Duration) {
	var stack snapshot.StackID
	f := p.w.functions[e.function]
	if f.effect.stacked() {
		stack = p.stacks.add(e.frames(), p.symbols.resolve) // it may read files: without the lock
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	t := p.thread(e.tid)
	if f.effect.atEntry() && e.phase == atReturn { // it failed
		if t.undo != nil {
			t.undo()
		}
		t.undo = nil
		return
	}
	if f.returned && e.phase == atReturn {
		e.out, e.result = e.returned, 0
		if e.out == 0 {
			e.result = refusedToGive
		}
	}
	if e.phase == atReturn && e.result != 0 {
		p.failed(f, e, t, stack, now)
		return
	}
	t.undo = nil
	p.succeeded(f, e, t, stack, now)
}

const (
	outOfMemory   = 2 // CUDA_ERROR_OUT_OF_MEMORY
	refusedToGive = 1 // a library's function returned no address
)

func (p *process) failed(f function, e *event, t *thread, stack snapshot.StackID, now time.Duration) {
	if e.result == outOfMemory && f.effect.stacked() && f.library == "" {
		e.pitch = 0 // it was not written
		p.source(p.place(f, t)).ledger.refused(sizeOf(f, e), stack, now)
	}
}

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

func (p *process) succeeded(f function, e *event, t *thread, stack snapshot.StackID, now time.Duration) {
	switch f.effect {
	case allocates, hands, allocatesPitched, allocatesArray, allocatesArray3D, allocatesMipmapped, imports, registers, creates, importsPhysical:
		p.allocated(f, e, t, stack, now)
	case frees, takesBack:
		p.freed(e.args[f.address], t, now)

	case retains:
		if b := p.physical[e.out]; b != nil {
			b.held++
		}
	case releases:
		p.released(e.args[0], t, now)
	case mapsMemory:
		if b := p.physical[e.args[3]]; b != nil {
			b.held++
			p.mapped[e.args[0]] = mapped{e.args[1], b}
		}
	case unmapsMemory:
		p.unmapped(e.args[0], e.args[1], t, now)

	case makesContext:
		p.contexts[e.out] = deviceID(int32(e.args[f.device]))
		t.contexts = append(t.contexts, e.out)
	case destroysContext:
		p.destroyed(e.args[0], t, now)
	case pushesContext:
		if len(t.contexts) < maxContexts {
			t.contexts = append(t.contexts, e.args[0])
		}
	case popsContext:
		t.contexts = t.contexts[:max(0, len(t.contexts)-1)]
	case setsContext:
		t.contexts = append(t.contexts[:max(0, len(t.contexts)-1)], e.args[0])
	case retainsPrimary:
		p.retained(deviceID(int32(e.args[f.device])), e.out)
	case releasesPrimary, resetsPrimary:
		p.primaryReleased(deviceID(int32(e.args[0])), f.effect == resetsPrimary, t, now)
	}
}

// maxContexts bounds a thread's stack of contexts.
const maxContexts = 1 << 10

// sizeOf is what a call asked for.
func sizeOf(f function, e *event) alloc.Bytes {
	size := e.args[f.size]
	switch f.effect {
	case allocatesPitched: // the pitch is known once it succeeded
		size = product(max(e.pitch, e.args[2]), e.args[3])
	case allocatesArray: // CUDA_ARRAY_DESCRIPTOR
		size = product(e.desc[0], max(1, e.desc[1]), elementSize(e.desc[2]))
	case allocatesArray3D: // CUDA_ARRAY3D_DESCRIPTOR
		size = product(e.desc[0], max(1, e.desc[1]), max(1, e.desc[2]), elementSize(e.desc[3]))
	case allocatesMipmapped:
		size = mipmappedSize(e.desc, uint32(e.args[2]))
	case imports, importsPhysical:
		size = 0
	}
	return alloc.Bytes(min(size, uint64(alloc.MaxBytes)))
}

// mipmappedSize adds up the levels of an array, each with half the edges of the one before.
// Layers, and the faces of a cube, are as many on each.
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

// elementSize is the bytes of an array's element, by its CUarray_format and, in the upper
// half, its channels. 0 is a format that has no such size, such as those of videos.
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

// product multiplies; what does not fit is the largest number.
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
		site: s.ledger.site(f.kind, size, stack, s.ledger.stream(stream)), source: s, ptr: alloc.Ptr(at), size: size,
		context: t.current(), foreign: f.effect == registers || f.kind == Imported,
	}
	if f.effect == creates || f.effect == importsPhysical {
		b.held, b.context = 1, 0
		p.physical[at] = b
	}
	if before := p.live[b.ptr]; before != nil { // the driver gave the address again: its free was not seen
		p.w.doubt(now, "an address was given again of which no free was seen")
		before.source.ledger.remove(before, now, freedAction(before))
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
	b.source.ledger.remove(b, now, freedAction(b))
	return func() {
		if p.live[b.ptr] == nil {
			p.live[b.ptr] = b
			b.source.ledger.add(b, now, snapshot.FreeFailed)
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
	slices.SortFunc(taken, func(a, b *buffer) int { return int(int64(a.seq) - int64(b.seq)) })
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
		p.w.unknown++
		t.undo = func() { p.w.unknown-- }
		return
	}
	t.undo = p.takeOne(b, now)
}

// released takes a handle of physical memory away; the memory lives on while it is mapped.
func (p *process) released(handle uint64, t *thread, now time.Duration) {
	b := p.physical[handle]
	if b == nil {
		p.w.unknown++
		t.undo = func() { p.w.unknown-- }
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

// destroyed ends a context: what was allocated in it is gone.
func (p *process) destroyed(context uint64, t *thread, now time.Duration) {
	device, known := p.contexts[context]
	if !known {
		p.w.doubt(now, "a context was destroyed that was made before it was watched")
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
			p.w.doubt(now, "a primary context was reset that was made before it was watched")
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
		p.w.doubt(now, "a primary context was released that may have been retained before it was watched")
		return
	}
	back := p.take(now, func(b *buffer) bool { return b.context == before.context })
	t.undo = func() { *its = before; back() }
}
