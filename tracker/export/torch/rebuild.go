package torch

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/plain"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// rebuilder turns one device's segments and events into the tables of a dump.
type rebuilder struct {
	*source
	ordinal int

	filled   bool          // the segments were read
	traced   bool          // the events were read
	ends     []finalBuffer // the buffers at the end, by address
	segments []alloc.Segment
	broken   int64              // segments left out because their blocks do not tile them
	at       *snapshot.Snapshot // the result, without its tables

	entries     []tables.EventEntry
	pools       []tables.PoolEntry // the pool of each entry
	frees       []tables.FreeEntry // stacks of frees, if they differ from the allocation's
	siteOf      []int32            // the call site of each entry about a buffer; -1 for other entries
	open        map[int64]int      // the entry of the alloc that is live at an address
	freedBefore []int32            // call sites of the buffers that were allocated before the first event, and freed since
	labels      map[int]userData   // of the allocations that are live, by entry
	oom         *rawEvent          // if no allocation followed it
	oomAt       int                // the number of entries before it
	deferred    rawEvent           // a free_requested whose free_completed may be the next event; without an action if there is none
	spans       []openSection      // sections that are open
	nextID      uint64
	start       time.Time
	now         int64 // microseconds: never back

	sites   []tables.SiteEntry
	siteIDs map[siteKey]int32
}

// userData is what the program said about an allocation.
type userData struct {
	metadata plain.Value // user_metadata, a text or a dict
	compile  string      // compile_context: the function that torch.compile made, such as "1/0"; "" if none
}

// finalBuffer is a buffer at the end.
type finalBuffer struct {
	*alloc.Block             // of a segment
	value        plain.Value // the block as the file has it
	stack        tables.StackID
	entry        int32 // index of its allocation; -1 if there is none
	site         int32
	stream       uint8
	host         bool // in host memory
}

// pending reports whether it is freed, and another stream still uses it.
func (e *finalBuffer) pending() bool { return e.State == alloc.Pending }

type openSection struct {
	id      uint64
	section uint32
}

type siteKey struct {
	tables.Place
	stream uint8
	tensor *tables.Tensor
}

// The bytes that things take, as plain.Data.Use counts them.
const (
	blockBytes = 32
	finalBytes = 128 // of a buffer at the end, with its allocation event
	entryBytes = 96  // of an event, with its index entries
	siteBytes  = 112
	labelBytes = 64
)

func (in *source) newRebuilder(ordinal int) *rebuilder {
	return &rebuilder{
		source: in, ordinal: ordinal, labels: make(map[int]userData), siteIDs: make(map[siteKey]int32),
		at: &snapshot.Snapshot{Device: in.device, Ordinal: ordinal},
	}
}

// dump makes the dump of the device. Its segments and events may have been read before.
func (r *rebuilder) dump(segments []rawSegment) (*snapshot.Dump, error) {
	r.at.Origin, r.at.Settings = r.origin, r.allocatorSettings()
	r.at.DriverUsed, r.at.DriverTotal = -1, -1
	if err := r.readSegments(segments); err != nil {
		return nil, err
	}
	if !r.traced {
		if err := r.readTrace(); err != nil {
			return nil, err
		}
	}
	r.findBegun()
	if err := r.findSites(); err != nil {
		return nil, err
	}
	r.findPeak()
	return r.result()
}

// findBegun finds the allocations of the buffers at the end, whose blocks have their true size.
func (r *rebuilder) findBegun() {
	for addr, i := range r.open {
		if e := r.finalAt(addr); e != nil {
			e.entry = int32(i)
			r.entries[i].Allocated = e.Size
		}
	}
}

func (r *rebuilder) readTrace() error {
	notes, err := r.notes()
	if err != nil {
		return err
	}
	r.begin(r.eventsIn(r.ordinal))
	for e, err := range r.events(r.ordinal) {
		if err != nil {
			return err
		}
		for len(notes) > 0 && e.micros > 0 && notes[0].micros <= e.micros {
			if err := r.note(notes[0]); err != nil {
				return err
			}
			notes = notes[1:]
		}
		if err := r.next(&e); err != nil {
			return err
		}
	}
	if err := r.flush(); err != nil {
		return err
	}
	for _, n := range notes {
		if err := r.note(n); err != nil {
			return err
		}
	}
	return nil
}

// begin prepares for at most that many events.
func (r *rebuilder) begin(most int) {
	r.traced = true
	r.entries, r.siteOf = make([]tables.EventEntry, 0, most), make([]int32, 0, most)
	r.open = make(map[int64]int, min(most, len(r.ends)))
}

const freeRequested = "free_requested"

// next adds an event. A free_requested and the free_completed that follows it at once become one event.
func (r *rebuilder) next(e *rawEvent) error {
	if err := r.Use(entryBytes); err != nil {
		return err
	}
	if e.action == "free_completed" && e.addr == r.deferred.addr {
		r.deferred = rawEvent{}
	}
	if err := r.flush(); err != nil {
		return err
	}
	if e.action == freeRequested {
		r.deferred = *e
		return nil
	}
	return r.event(e)
}

// flush adds the event that next deferred, if any.
func (r *rebuilder) flush() error {
	deferred := r.deferred
	if r.deferred = (rawEvent{}); deferred.action != freeRequested {
		return nil
	}
	return r.event(&deferred)
}

// notes returns the device's annotations that have a time, sorted by it.
func (r *rebuilder) notes() (notes []rawAnnotation, err error) {
	for a, err := range r.annotated() {
		if err == nil {
			err = r.Use(entryBytes)
		}
		if err != nil {
			return nil, err
		}
		if a.device == r.ordinal && a.micros > 0 {
			notes = append(notes, a)
		}
	}
	slices.SortStableFunc(notes, func(x, y rawAnnotation) int { return cmp.Compare(x.micros, y.micros) })
	return notes, nil
}

// since returns the time of an event. In a file without times, events are a microsecond apart.
func (r *rebuilder) since(micros int64) time.Duration {
	if micros > 0 && r.start.IsZero() && len(r.entries) == 0 {
		r.start, r.now = time.UnixMicro(micros).UTC(), micros
	}
	if r.start.IsZero() {
		return time.Duration(len(r.entries)) * time.Microsecond
	}
	r.now = max(r.now, micros)
	return time.UnixMicro(r.now).Sub(r.start)
}

func (r *rebuilder) add(e tables.EventEntry, site int32) {
	r.entries = append(r.entries, e)
	r.siteOf = append(r.siteOf, site)
}

func (r *rebuilder) event(e *rawEvent) error {
	entry := tables.EventEntry{Since: r.since(e.micros), Ptr: alloc.Ptr(e.addr), Allocated: alloc.Bytes(e.size), Stream: r.streamOf(e.stream)}
	switch e.action {
	case "alloc":
		return r.alloc(e, entry)
	case "free_completed", "free":
		return r.free(e, entry)
	case "segment_alloc", "segment_map":
		entry.Action, entry.Stack = mem.SegmentAllocated, e.stack
		r.private(e.pool)
	case "segment_free", "segment_unmap":
		entry.Action, entry.Stack = mem.SegmentFreed, e.stack
		r.private(e.pool)
	case "oom":
		oom := *e
		r.oom, r.oomAt = &oom, len(r.entries)
		entry.Action, entry.Ptr, entry.Stack = mem.OutOfMemory, 0, e.stack
	case "snapshot":
		number := r.mark(e)
		if number < 0 {
			return nil
		}
		entry.Action, entry.Ptr, entry.Stack, entry.Allocated = mem.Marked, 0, e.stack, alloc.Bytes(number)
	case freeRequested:
		entry.Action = mem.FreeRequested
		if i, ok := r.open[e.addr]; ok {
			begun := r.entries[i]
			entry.Allocated, entry.Tensor, entry.Stack, entry.Section = begun.Allocated, begun.Tensor, begun.Stack, begun.Section
			r.freedAt(e, entry)
		}
	case "annotate": // a text for the tensor that is live at an address, since 2.14
		if i, live := r.open[e.addr]; live {
			r.labels[i] = userData{e.metadata, r.labels[i].compile}
		}
		return nil
	default: // what later versions add
		return nil
	}
	r.add(entry, -1)
	return nil
}

// private notes the private pool of the next entry's segment, if it has one. PyTorch names it since
// 2.12.
func (r *rebuilder) private(pool poolID) {
	if pool != (poolID{}) {
		r.pools = append(r.pools, tables.PoolEntry{Seq: uint64(len(r.entries)), Name: pool.String()})
	}
}

// mark returns the number of a mark; -1 for the last event that Write writes, which is no mark.
func (r *rebuilder) mark(e *rawEvent) int64 {
	if !r.own {
		r.nextID++
		return int64(r.nextID)
	}
	var number int64
	if _, err := fmt.Sscanf(r.Str(e.metadata), "mark %d", &number); err != nil {
		return -1
	}
	return number
}

// rounded is the size of a block for a request. The host's blocks say their own.
func (e *rawEvent) rounded() alloc.Bytes {
	const unit = 512
	if e.host {
		return alloc.Bytes(e.size)
	}
	return alloc.Bytes(max(unit, (e.size+unit-1)/unit*unit))
}

func (r *rebuilder) alloc(e *rawEvent, entry tables.EventEntry) error {
	if !e.host {
		r.oom = nil // the program went on
	}
	about := r.ofEvent(e)
	site, tensor, err := r.site(e.stack, entry.Stream, about, e.size)
	if err != nil {
		return err
	}
	entry.Action, entry.Allocated, entry.Tensor, entry.Stack = mem.Allocated, e.rounded(), tensor, e.stack
	entry.Section = uint16(r.sites[site].Section)
	r.sites[site].Total++
	if before, ok := r.open[e.addr]; ok {
		delete(r.labels, before)
	}
	r.open[e.addr] = len(r.entries)
	if !r.own && (!e.metadata.IsNone() || e.compile != "") {
		r.labels[len(r.entries)] = userData{e.metadata, e.compile}
		err = r.Use(labelBytes)
	}
	r.add(entry, site)
	return err
}

func (r *rebuilder) free(e *rawEvent, entry tables.EventEntry) error {
	entry.Action = mem.Freed
	if i, ok := r.open[e.addr]; ok {
		begun := r.entries[i]
		entry.Allocated, entry.Tensor, entry.Stack, entry.Section = begun.Allocated, begun.Tensor, begun.Stack, begun.Section
		delete(r.open, e.addr)
		delete(r.labels, i)
		r.freedAt(e, entry)
		r.add(entry, r.siteOf[i])
		return nil
	}
	site, tensor, err := r.site(0, entry.Stream, described{host: e.host}, e.size)
	if err != nil {
		return err
	}
	entry.Allocated, entry.Tensor = e.rounded(), tensor
	r.sites[site].Total++
	r.freedBefore = append(r.freedBefore, site)
	r.add(entry, site)
	return nil
}

// freedAt notes the stack of the next entry, a free.
func (r *rebuilder) freedAt(e *rawEvent, entry tables.EventEntry) {
	if e.stack != 0 && e.stack != entry.Stack {
		r.frees = append(r.frees, tables.FreeEntry{Seq: uint64(len(r.entries)), Stack: e.stack})
	}
}

// note enters an annotation as the beginning or the end of a section.
func (r *rebuilder) note(a rawAnnotation) error {
	section, err := r.section(a.name)
	if err != nil {
		return err
	}
	entry := tables.EventEntry{Since: r.since(a.micros), Action: mem.SectionBegan, Section: uint16(section)}
	if a.begins {
		r.nextID++
		r.spans = append(r.spans, openSection{r.nextID, section})
		entry.Allocated = alloc.Bytes(r.nextID)
	} else {
		i := len(r.spans) - 1
		for i >= 0 && r.spans[i].section != section {
			i--
		}
		if i < 0 { // it began before the annotations did
			return nil
		}
		entry.Action, entry.Allocated = mem.SectionEnded, alloc.Bytes(r.spans[i].id)
		r.spans = slices.Delete(r.spans, i, i+1)
	}
	r.add(entry, -1)
	return nil
}

// site returns the table's entry for a buffer's call site.
func (r *rebuilder) site(stack tables.StackID, stream uint8, about described, size int64) (int32, *tables.Tensor, error) {
	tensor, err := r.tensor(about, size)
	if err != nil {
		return 0, nil, err
	}
	section, err := r.section(about.section)
	if err != nil {
		return 0, nil, err
	}
	key := siteKey{tables.Place{Stack: stack, Section: section}, stream, tensor}
	id, ok := r.siteIDs[key]
	if !ok {
		id = int32(len(r.sites))
		r.siteIDs[key] = id
		r.sites = append(r.sites, tables.SiteEntry{Place: key.Place, Stream: stream, Tensor: tensor})
		err = r.Use(siteBytes)
	}
	return id, tensor, err
}

// readSegments reads the state at the end.
func (r *rebuilder) readSegments(segments []rawSegment) error {
	if r.filled {
		return nil
	}
	r.filled = true
	r.ends = make([]finalBuffer, 0, r.blocksIn(segments))
	for i := range segments {
		s := &segments[i]
		blocks := make([]alloc.Block, 0, r.blocksIn(segments[i:i+1]))
		for b, err := range r.blocksOf(s) {
			if err == nil {
				err = r.Use(blockBytes)
			}
			if err != nil {
				return err
			}
			piece := alloc.Block{Ptr: alloc.Ptr(b.address), Size: alloc.Bytes(b.size), State: alloc.Inactive}
			switch b.state {
			case allocated:
				piece.State, piece.Requested = alloc.Allocated, alloc.Bytes(b.requested)
			case pendingFree:
				piece.State, piece.Requested = alloc.Pending, alloc.Bytes(b.requested)
			}
			blocks = append(blocks, piece)
			if b.state != inactive {
				err = r.addFinal(&blocks[len(blocks)-1], &b, r.streamOf(s.stream))
			}
			if err != nil {
				return err
			}
		}
		r.addSegment(s, blocks)
	}
	if r.ordinal == r.host {
		if err := r.readHost(); err != nil {
			return err
		}
	}
	r.sortFinal()
	return nil
}

// blocksIn returns how many blocks the segments have.
func (r *rebuilder) blocksIn(segments []rawSegment) (n int) {
	for i := range segments {
		n += r.Len(segments[i].blocks)
	}
	return r.atMost(n)
}

// sortFinal orders the buffers at the end by address. Of two at one address the first of the
// file counts.
func (r *rebuilder) sortFinal() {
	slices.SortStableFunc(r.ends, func(x, y finalBuffer) int { return cmp.Compare(x.Ptr, y.Ptr) })
	r.ends = slices.CompactFunc(r.ends, func(x, y finalBuffer) bool { return x.Ptr == y.Ptr })
	for i := range r.ends {
		e := &r.ends[i]
		if e.host {
			r.at.HostReserved += e.Size
			continue
		}
		r.at.Live = r.at.Live.Add(mem.Tally{Count: 1, Bytes: e.Requested})
		r.at.Allocated += e.Size
	}
}

// finalAt returns the buffer that is at an address at the end, or nil.
func (r *rebuilder) finalAt(addr int64) *finalBuffer {
	i, ok := slices.BinarySearchFunc(r.ends, alloc.Ptr(addr), func(e finalBuffer, addr alloc.Ptr) int { return cmp.Compare(e.Ptr, addr) })
	if !ok {
		return nil
	}
	return &r.ends[i]
}

func (r *rebuilder) addSegment(s *rawSegment, blocks []alloc.Block) {
	size := alloc.Bytes(s.total)
	if size <= 0 { // not said
		for _, b := range blocks {
			size += b.Size
		}
	}
	if size == 0 {
		return
	}
	pool := "large"
	if s.kind == "small" {
		pool = "small"
	}
	whole := alloc.Segment{
		Ptr: alloc.Ptr(s.address), Size: size, Pool: pool, Stream: alloc.Stream(s.stream), Expandable: s.expandable, Private: s.pool.String(),
		Blocks: blocks,
	}
	r.at.Reserved += size
	if whole.Check() != nil {
		r.broken++ // its buffers are in r.ends nevertheless
		return
	}
	r.segments = append(r.segments, whole)
}

// Since version 2.15, PyTorch can also record the pinned memory of its host allocator
// (_record_memory_history(record_pinned_host_memory=True)): "host_segments" has the blocks, which
// are never split, and "host_traces" the events. The file gives this memory to no device. Here it
// goes to the device with the largest segments, as alloc.PinnedMemory, which counts in none of the
// device's totals.

// readHost reads the buffers in the host's memory at the end.
func (r *rebuilder) readHost() error {
	i := 0
	for v, err := range r.dicts(r.hostSegments, "host_segments") {
		if err == nil {
			err = r.Use(blockBytes)
		}
		if err == nil {
			err = r.hostSegment(v)
		}
		if err != nil {
			return fmt.Errorf("host segment %d: %w", i, err)
		}
		i++
	}
	return nil
}

// hostSegment reads a block of host memory. PyTorch writes it as a segment that either has a state
// itself or has one block.
func (r *rebuilder) hostSegment(v plain.Value) error {
	if _, ok := r.Get(v, r.key.state); !ok {
		blocks, _ := r.Get(v, r.key.blocks)
		for inner, err := range r.dicts(blocks, "blocks") {
			if err == nil {
				err = r.hostBlock(inner)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return r.hostBlock(v)
}

func (r *rebuilder) hostBlock(v plain.Value) error {
	address, err := r.required(v, r.key.address, "address")
	if err != nil {
		return err
	}
	size, ok := r.integerOK(v, r.key.size)
	if !ok {
		size, err = r.required(v, r.key.total, "total_size")
	}
	if err != nil {
		return err
	}
	if err := r.checkSize(size, "size"); err != nil {
		return err
	}
	b := rawBlock{address: address, size: size, value: v}
	if b.stack, err = r.stackAt(v, r.key.frames); err != nil {
		return err
	}
	piece := &alloc.Block{Ptr: alloc.Ptr(address), Size: alloc.Bytes(size), Requested: alloc.Bytes(size)}
	switch r.text(v, r.key.state) {
	case "active_allocated":
		piece.State = alloc.Allocated
	case "active_pending_free", "active_awaiting_free":
		piece.State = alloc.Pending
	default:
		return nil
	}
	if err := r.addFinal(piece, &b, 0); err != nil {
		return err
	}
	r.ends[len(r.ends)-1].host = true
	return nil
}

func (r *rebuilder) addFinal(piece *alloc.Block, b *rawBlock, stream uint8) error {
	r.ends = append(r.ends, finalBuffer{Block: piece, value: b.value, stack: b.stack, entry: -1, stream: stream})
	return r.Use(finalBytes)
}
