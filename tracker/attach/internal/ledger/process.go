package ledger

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Process applies the calls of one process to its ledgers. It is not safe for use by several goroutines: the
// caller has a lock, which guards the ledgers too.
type Process struct {
	functions      []event.Function
	returnsNothing map[int]bool // indexes of functions that return nothing according to their file
	stacks         *symbols.StackTable
	prior          *Prior // nil if it was watched from its start
	accuracy       *Accuracy
	open           func(Device, *Prior) *Ledger
	ledgers        map[Device]*Ledger

	live     map[liveKey]*buffer
	physical map[uint64]*buffer // by handle, while held
	mapped   map[uint64]mapped  // by address

	contexts map[uint64]Device
	primary  map[Device]*primary
	green    map[uint64]Device // by handle: the devices of green contexts
	threads  map[uint32]*thread
}

// NewProcess returns a process that has no buffers. prior is what it used before it was watched; nil if it
// was watched from its start. returnsNothing has the indexes of functions that return nothing. The process
// calls open once for each device that it uses.
func NewProcess(functions []event.Function, returnsNothing map[int]bool, stacks *symbols.StackTable, prior *Prior, accuracy *Accuracy, open func(Device, *Prior) *Ledger) *Process {
	p := &Process{
		functions: functions, returnsNothing: returnsNothing, stacks: stacks, prior: prior, accuracy: accuracy,
		open: open, ledgers: make(map[Device]*Ledger),
	}
	p.reset()
	return p
}

// reset drops all state but the ledgers.
func (p *Process) reset() {
	p.live, p.physical, p.mapped = make(map[liveKey]*buffer), make(map[uint64]*buffer), make(map[uint64]mapped)
	p.contexts, p.primary, p.green, p.threads = make(map[uint64]Device), make(map[Device]*primary), make(map[uint64]Device), make(map[uint32]*thread)
}

// Exec ends the program that the process runs, with its buffers and contexts.
func (p *Process) Exec(now time.Duration) {
	p.removeMatching(now, func(*buffer) bool { return true })
	p.prior = nil
	p.reset()
}

// EndThread drops the state of a thread that has ended.
func (p *Process) EndThread(tid uint32) { delete(p.threads, tid) }

// ledger returns the ledger of a device.
func (p *Process) ledger(d Device) *Ledger {
	l := p.ledgers[d]
	if l == nil {
		l = p.open(d, p.prior)
		p.ledgers[d] = l
	}
	return l
}

// Call applies an event of a call of a watched function, with the ID of its stack.
func (p *Process) Call(e *event.Event, stack tables.StackID, now time.Duration) {
	f := p.functions[e.Function]
	t := p.thread(e.TID)
	if f.Effect.AppliesAtEntry() && e.Phase == event.AtReturn { // the call failed
		if t.undo != nil {
			t.undo()
		}
		t.undo = nil
		return
	}
	if f.Effect == event.LibraryReports { // no result
		e.Result = 0
	}
	if (f.Returned || f.Void || p.returnsNothing[int(e.Function)]) && e.Phase == event.AtReturn {
		if e.Result = 0; f.Returned {
			e.Out = e.Returned
		}
		if e.Out == 0 {
			e.Result = returnedNothing
		}
	}
	if e.Phase == event.AtReturn && e.Result != 0 {
		p.failed(f, e, t, stack, now)
		return
	}
	t.undo = nil
	p.succeeded(f, e, t, stack, now)
}

const (
	outOfMemory     = 2 // CUDA_ERROR_OUT_OF_MEMORY
	returnedNothing = 1 // a library's function returned no address
)

func (p *Process) failed(f event.Function, e *event.Event, t *thread, stack tables.StackID, now time.Duration) {
	if e.Result == outOfMemory && f.Effect.RecordsStack() && f.Library == "" {
		e.Pitch = 0 // the call did not write it
		p.ledger(p.deviceFor(f, e, t)).outOfMemory(sizeOf(f, e), stack, now)
	}
}

func (p *Process) succeeded(f event.Function, e *event.Event, t *thread, stack tables.StackID, now time.Duration) {
	switch f.Effect {
	case event.Allocates, event.LibraryAllocates, event.AllocatesPitched, event.AllocatesArray, event.AllocatesArray3D, event.AllocatesMipmapped, event.Imports, event.Registers, event.Creates, event.ImportsPhysical:
		p.allocated(f, e, t, stack, now)
	case event.LibraryReports:
		switch size := int64(e.Args[f.Size]); {
		case size < 0:
			p.freed(f, e, t, now)
		case size > 0 && e.Args[f.Address] != 0:
			p.allocated(f, e, t, stack, now)
		}
	case event.Frees, event.LibraryFrees:
		p.freed(f, e, t, now)

	case event.Retains:
		if b := p.physical[e.Out]; b != nil {
			b.references++
		}
	case event.Releases:
		p.released(e.Args[0], t, now)
	case event.MapsMemory:
		if b := p.physical[e.Args[3]]; b != nil {
			b.references++
			p.mapped[e.Args[0]] = mapped{e.Args[1], b}
		}
	case event.UnmapsMemory:
		p.unmapped(e.Args[0], e.Args[1], t, now)

	case event.MakesContext:
		p.contexts[e.Out] = Device(int32(e.Args[f.Device]))
		t.pushed(e.Out)
	case event.DestroysContext:
		p.destroyed(e.Args[0], t, now)
	case event.PushesContext:
		t.pushed(e.Args[0])
	case event.PopsContext:
		t.contexts = t.contexts[:max(0, len(t.contexts)-1)]
	case event.SetsContext:
		t.contexts = append(t.contexts[:max(0, len(t.contexts)-1)], e.Args[0])
	case event.RetainsPrimary:
		p.retained(Device(int32(e.Args[f.Device])), e.Out)
	case event.ReleasesPrimary, event.ResetsPrimary:
		p.primaryReleased(Device(int32(e.Args[0])), f.Effect == event.ResetsPrimary, t, now)

	case event.MakesGreen:
		d := Device(int32(e.Args[f.Device]))
		p.green[e.Out] = d
		p.retained(d, 0)
	case event.ConvertsGreen:
		p.greenContext(e.Args[1], e.Out, now)
	case event.DestroysGreen:
		p.greenDestroyed(e.Args[0], t, now)
	}
}

// liveKey identifies a live buffer. A block can begin at the address of its segment, so the key
// distinguishes them.
type liveKey struct {
	at    alloc.Ptr
	block bool
}

func (b *buffer) key() liveKey { return liveKey{b.ptr, b.block} }

// mapped is a mapping of physical memory.
type mapped struct {
	size uint64
	of   *buffer
}

// primary is a device's primary context.
type primary struct {
	contexts []uint64 // its handle, and those of green contexts
	retained int
}

// add adds a handle; 0 is none.
func (p *primary) add(context uint64) {
	if context != 0 && !slices.Contains(p.contexts, context) && len(p.contexts) < maxContexts {
		p.contexts = append(slices.Clip(p.contexts), context)
	}
}

// perThreadStream is CU_STREAM_PER_THREAD: the default stream of the calling thread.
const perThreadStream alloc.Stream = 2

// thread is the state of a thread of the process.
type thread struct {
	contexts []uint64 // the current one is the last
	undo     func()   // undoes what the current call has changed; nil if nothing
}

func (p *Process) thread(tid uint32) *thread {
	t := p.threads[tid]
	if t == nil {
		t = new(thread)
		p.threads[tid] = t
	}
	return t
}

// current returns the thread's current context; 0 if unknown.
func (t *thread) current() uint64 {
	if len(t.contexts) == 0 {
		return 0
	}
	return t.contexts[len(t.contexts)-1]
}

func (p *Process) deviceOf(context uint64) Device {
	if d, ok := p.contexts[context]; ok {
		return d
	}
	return p.prior.device()
}

// deviceFor returns the device that a call of this thread allocates on.
func (p *Process) deviceFor(f event.Function, e *event.Event, t *thread) Device {
	switch {
	case f.Block:
		return BlocksOf + Device(max(0, int8(e.Args[f.Device])))
	case f.Memory == alloc.PinnedMemory:
		return HostMemory
	case f.Host:
		return LibraryMemory
	case f.Library != "" && t.current() == 0: // a library may allocate without asking the driver
		if len(p.contexts) == 0 && !p.prior.mayHaveContexts() {
			return LibraryMemory
		}
		return p.onlyDevice()
	}
	return p.deviceOf(t.current())
}

// onlyDevice returns the device that all contexts are on.
func (p *Process) onlyDevice() Device {
	only := p.prior.device()
	for _, d := range p.contexts {
		if only != UnknownDevice && only != d {
			return UnknownDevice
		}
		only = d
	}
	return only
}

func (p *Process) allocated(f event.Function, e *event.Event, t *thread, stack tables.StackID, now time.Duration) {
	l := p.ledger(p.deviceFor(f, e, t))
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
	if f.PerThread && stream == 0 {
		stream = perThreadStream
	}
	size, kind := sizeOf(f, e), f.Kind
	if len(f.Uses) > 0 {
		kind = f.KindFor(p.stacks.Stack(stack))
	}
	b := &buffer{
		site: l.site(tensorKey{kind, f.Memory, size}, stack, l.stream(stream)), ledger: l, ptr: alloc.Ptr(at),
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
		p.accuracy.Warn(now, "an address was given again of which no free was seen")
		before.ledger.remove(before, now, freedAction(before))
	}
	p.live[b.key()] = b
	action := mem.Allocated
	if b.foreign {
		action = mem.Registered
	}
	l.add(b, now, action)
}

func freedAction(b *buffer) mem.Action {
	if b.foreign {
		return mem.Unregistered
	}
	return mem.Freed
}

// removeBuffer removes a buffer, and returns what restores it.
func (p *Process) removeBuffer(b *buffer, now time.Duration) (undo func()) {
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
func (p *Process) removeMatching(now time.Duration, of func(*buffer) bool) (undo func()) {
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

func (p *Process) freed(f event.Function, e *event.Event, t *thread, now time.Duration) {
	at := e.Args[f.Address]
	if at == 0 {
		return
	}
	b := p.live[liveKey{alloc.Ptr(at), f.Block}]
	if b == nil && f.Without != "" {
		return // the function that called this one may have reported the free
	}
	if b == nil || p.physical[at] == b {
		p.accuracy.UnknownFrees++
		t.undo = func() { p.accuracy.UnknownFrees-- }
		return
	}
	t.undo = p.removeBuffer(b, now)
}

// released removes a handle of physical memory. The memory stays while it is mapped.
func (p *Process) released(handle uint64, t *thread, now time.Duration) {
	b := p.physical[handle]
	if b == nil {
		p.accuracy.UnknownFrees++
		t.undo = func() { p.accuracy.UnknownFrees-- }
		return
	}
	t.undo = p.dropReferences(b, 1, now)
}

// dropReferences removes n references to physical memory, and with the last one the memory.
func (p *Process) dropReferences(b *buffer, n int32, now time.Duration) (undo func()) {
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
func (p *Process) unmapped(at, size uint64, t *thread, now time.Duration) {
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

// maxContexts bounds a thread's stack of contexts.
const maxContexts = 1 << 10

// pushed makes a context current.
func (t *thread) pushed(context uint64) {
	if len(t.contexts) < maxContexts {
		t.contexts = append(t.contexts, context)
	}
}

// destroyed ends a context, and frees what was allocated in it.
func (p *Process) destroyed(context uint64, t *thread, now time.Duration) {
	device, known := p.contexts[context]
	if !known {
		p.accuracy.Warn(now, "a context was destroyed that was made before it was watched")
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

func (p *Process) retained(d Device, context uint64) {
	its := p.primary[d]
	if its == nil {
		its = new(primary)
		p.primary[d] = its
	}
	its.retained++
	its.add(context)
	if context != 0 {
		p.contexts[context] = d
	}
}

// greenContext records the context of a green context. What is allocated in it belongs to the primary
// context of its device.
func (p *Process) greenContext(green, context uint64, now time.Duration) {
	d, known := p.green[green]
	if !known {
		p.accuracy.Warn(now, "a green context was used that was made before it was watched")
		return
	}
	p.contexts[context] = d
	if its := p.primary[d]; its != nil {
		its.add(context)
	}
}

// greenDestroyed ends a green context. It no longer retains the primary context of its device.
func (p *Process) greenDestroyed(green uint64, t *thread, now time.Duration) {
	d, known := p.green[green]
	if !known {
		return
	}
	delete(p.green, green)
	p.primaryReleased(d, false, t, now)
	back := t.undo
	t.undo = func() {
		p.green[green] = d
		if back != nil {
			back()
		}
	}
}

// primaryReleased ends a device's primary context with its last reference.
func (p *Process) primaryReleased(d Device, reset bool, t *thread, now time.Duration) {
	its := p.primary[d]
	if its == nil {
		if reset {
			p.accuracy.Warn(now, "a primary context was reset that was made before it was watched")
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
		p.accuracy.Warn(now, "a primary context was released that may have been retained before it was watched")
		return
	}
	back := p.removeMatching(now, func(b *buffer) bool { return slices.Contains(before.contexts, b.context) })
	its.contexts = nil
	t.undo = func() { *its = before; back() }
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
		size = MipmappedSize(e.Desc, uint32(e.Args[2]))
	case event.Imports, event.ImportsPhysical:
		size = 0
	}
	return alloc.Bytes(min(size, math.MaxInt64))
}

// MipmappedSize sums the levels of an array: each has half the edges of the one before, and as many
// layers or faces of a cube.
func MipmappedSize(desc [5]uint64, levels uint32) (size uint64) {
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
