package bfc

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// usage returns the memory in use by the summary of a failure that lists no chunks.
func (d *Failure) usage() *export.Usage {
	u := &export.Usage{Device: d.device()}
	for _, s := range d.inUseBySize() {
		u.Rows = append(u.Rows, export.Row{Device: u.Device, Totals: snapshot.Totals{Live: mem.Tally{Count: s.Count, Bytes: s.Bytes}}})
	}
	return u
}

// device returns the allocator's name, which has the device's number in it: "GPU_0_bfc".
func (d *Failure) device() string { return cmp.Or(d.allocator, "BFC allocator") }

var ordinalIn = regexp.MustCompile(`_(\d{1,3})_`)

// dump makes a snapshot of the chunks. Each run of adjacent chunks is a segment, and each chunk in
// use is a buffer. The log has no line of code for it, but may name the operation.
func (d *Failure) dump() *snapshot.Dump {
	runs, _ := d.runs()
	b := builder{stacks: new(tables.StackTable), sites: make(map[siteKey]int32), byName: make(map[string]tables.StackID)}
	for _, run := range runs {
		s := alloc.Segment{Ptr: run[0].ptr, Pool: "large"}
		for i := range run {
			c := &run[i]
			block := alloc.Block{Ptr: c.ptr, Size: c.size, State: alloc.Inactive}
			if c.used {
				block.State, block.Requested = alloc.Allocated, c.size
				b.add(c)
			}
			s.Size += c.size
			s.Blocks = append(s.Blocks, block)
		}
		b.at.Segments = append(b.at.Segments, s)
		b.at.Reserved += s.Size
	}
	b.at.Device = d.device()
	if m := ordinalIn.FindStringSubmatch(d.allocator); m != nil {
		b.at.Ordinal, _ = strconv.Atoi(m[1])
	}
	b.at.Events = uint64(len(b.allocations))
	if b.at.Live.Count > 0 {
		b.at.Memory = map[alloc.Memory]mem.Tally{alloc.UnknownMemory: b.at.Live}
	}
	b.at.Allocated, b.at.Total, b.at.Peak = b.at.Live.Bytes, b.at.Live, b.at.Live
	b.at.DriverUsed, b.at.DriverTotal = -1, -1
	b.at.Settings = map[string]string{walk.AllocatorSetting: walk.BFCAllocator}
	*tables.Of(&b.at.Tables) = tables.Tables{
		Stacks: b.stacks, Sections: []string{""}, Streams: []alloc.Stream{0}, Sites: b.entries, Allocations: b.allocations,
	}
	return &snapshot.Dump{
		Reason:   "out of memory",
		Devices:  snapshot.Devices{{Device: b.at.Device, Ordinal: b.at.Ordinal, Levels: snapshot.Levels{DriverUsed: -1, DriverTotal: -1, Reserved: b.at.Reserved}}},
		Snapshot: &b.at,
		OOM:      d.outOfMemory(&b.at),
	}
}

// outOfMemory is the failure as the error of a dump. The operation that asked stands for the section of a program.
func (d *Failure) outOfMemory(at *snapshot.Snapshot) *snapshot.OOM {
	_, free, largest := d.tally(false)
	return &snapshot.OOM{
		Requested: d.least(), Section: d.operation, Free: -1, Total: -1, Reserved: at.Reserved, Inactive: free, LargestInactive: largest,
		Untracked: -1, Elsewhere: -1, Others: -1, CallSites: d.holders(), Advice: d.advice(),
	}
}

// holders are the named operations that hold most.
func (d *Failure) holders() (out []mem.CallSiteTally) {
	const most = 10
	sums := make(map[string]mem.Tally)
	for i := range d.chunks {
		if c := &d.chunks[i]; c.used && c.name != "" {
			sums[c.name] = sums[c.name].Add(mem.Tally{Count: 1, Bytes: c.size})
		}
	}
	for name, sum := range sums {
		out = append(out, mem.CallSiteTally{Frame: mem.Frame{Function: name}, Tally: sum})
	}
	slices.SortFunc(out, func(a, b mem.CallSiteTally) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), tables.CompareFrames(a.Frame, b.Frame))
	})
	return out[:min(len(out), most)]
}

// builder makes the tables of a snapshot.
type builder struct {
	at          snapshot.Snapshot
	stacks      *tables.StackTable
	byName      map[string]tables.StackID
	sites       map[siteKey]int32
	entries     []tables.SiteEntry
	allocations []tables.AllocationEntry
}

type siteKey struct {
	name string
	size alloc.Bytes
}

func (b *builder) add(c *chunk) {
	key := siteKey{c.name, c.size}
	site, ok := b.sites[key]
	if !ok {
		site = int32(len(b.entries))
		b.sites[key] = site
		b.entries = append(b.entries, tables.SiteEntry{
			Place: tables.Place{Stack: b.stack(c.name)}, Tensor: &tables.Tensor{Kind: "", Memory: alloc.UnknownMemory, Each: c.size},
		})
	}
	e := &b.entries[site]
	e.Live, e.Peak, e.Total = e.Live+1, e.Peak+1, e.Total+1
	one := mem.Tally{Count: 1, Bytes: c.size}
	b.at.Live = b.at.Live.Add(one)
	b.allocations = append(b.allocations, tables.AllocationEntry{Site: site, Ptr: c.ptr, Allocated: c.size, Seq: uint64(len(b.allocations))})
}

// stack makes a call stack from an operation's name, which stands for the line of code.
func (b *builder) stack(name string) tables.StackID {
	if name == "" {
		return 0
	}
	id, ok := b.byName[name]
	if !ok {
		f := mem.Frame{Function: name}
		id = b.stacks.Add(mem.Stack{f}, f)
		b.byName[name] = id
	}
	return id
}
