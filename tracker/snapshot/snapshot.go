package snapshot

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tablejson"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Snapshot is the state of a device's memory at an instant. It does not change; any goroutine
// may read it. WriteJSON writes it, and Read reads it, in another program too.
type Snapshot struct {
	Time    time.Time
	Origin  Origin
	Device  string // the device's name
	Ordinal int
	UUID    string // the device's own name among all, as nvidia-smi prints it; "" if it is not known
	Levels
	Peak  mem.Tally // the level of most bytes, and the buffers live then; as Live, without host memory
	Total mem.Tally // all buffers ever, without those in host memory

	// Events is how many events the history had seen: buffers allocated since
	// have a Seq of at least that.
	Events uint64

	// Cache and Segments are the state of the allocator at the same instant; nil if
	// there is none, or if it is not known. A light snapshot has no Segments.
	Cache    *alloc.Stats
	Segments []alloc.Segment
	// Settings are the settings of the allocator, in its own words; nil if they are unknown.
	Settings map[string]string

	// Tables are the buffers and call sites, which Allocations and CallSites iterate over.
	Tables Tables
}

// Tables are the live buffers and call sites of a snapshot in the form in which its source keeps them. A program reads
// them by the methods of Snapshot; it can copy them, but not look inside.
type Tables = tables.Snapshot

// Allocation is one live buffer of a Snapshot.
type Allocation struct {
	Seq       uint64      `json:"seq"` // its place in the history: larger is later
	Time      time.Time   `json:"time"`
	Ptr       alloc.Ptr   `json:"address"`
	Requested alloc.Bytes `json:"requested_bytes"`
	Allocated alloc.Bytes `json:"allocated_bytes"` // after rounding
	Group
	Place
	Label       string `json:"label,omitempty"`
	Registered  bool   `json:"registered,omitempty"`  // other code owns the memory
	Unreachable bool   `json:"unreachable,omitempty"` // the program can no longer free it; see tracker.Config.FindUnreachable
}

// String says what the buffer is and which line allocated it: "Parameter (512,) float32, 2.0 KiB at
// 0x40000000000, main.go:82 main.load".
func (a Allocation) String() string {
	return fmt.Sprintf("%s, %v at %v, %s", appendGroup(nil, &a.Group), a.Requested, a.Ptr, text.Line(a.CallSite.String()))
}

// Place is where in a program buffers were allocated.
type Place struct {
	Section  string       `json:"section"` // its path; "" is outside of all
	Stream   alloc.Stream `json:"-"`
	Stack    mem.Stack    `json:"stack"`     // shared: do not write
	CallSite mem.Frame    `json:"call_site"` // the line of the user's code in Stack
}

// CallSiteStats is the memory that one call stack allocated, with one kind, shape and dtype in one
// section. For a program whose shapes never repeat, shapes that have long been freed are added up
// by stack and section: such an entry has no dtype, no shape, and only a Total.
type CallSiteStats struct {
	Group
	Place
	Totals
}

// String says what is live, what was live at the peak, and what was ever allocated: "Parameter (512,) float32 at main.go:82
// main.load: 8 buffers, 16.0 KiB live; 8 buffers, 16.0 KiB at the peak; 9 buffers, 18.0 KiB in total".
func (c CallSiteStats) String() string {
	return fmt.Sprintf("%s at %s: %v live; %v at the peak; %v in total", appendGroup(nil, &c.Group), text.Line(c.CallSite.String()), c.Live, c.Peak, c.Total)
}

// Totals counts the buffers of a call site or group: now, at the peak, and ever.
type Totals struct {
	Live  mem.Tally `json:"live"`  // now
	Peak  mem.Tally `json:"peak"`  // at the moment of most bytes of all
	Total mem.Tally `json:"total"` // ever
}

// Allocations iterates over the live buffers, oldest first. A light snapshot has none.
func (s *Snapshot) Allocations() iter.Seq[Allocation] {
	return func(yield func(Allocation) bool) {
		for _, e := range tables.Of(&s.Tables).Allocations {
			if !yield(s.allocation(e)) {
				return
			}
		}
	}
}

func (s *Snapshot) allocation(e tables.AllocationEntry) Allocation {
	t := tables.Of(&s.Tables)
	site := &t.Sites[e.Site]
	return Allocation{
		Seq: e.Seq, Time: t.Epoch.Add(e.Since), Ptr: e.Ptr, Requested: site.Tensor.Each, Allocated: e.Allocated,
		Group: groupOf(site.Tensor), Place: s.place(site.Place, site.Stream), Label: e.Label, Registered: e.Foreign, Unreachable: e.Unreachable,
	}
}

func groupOf(x *tables.Tensor) Group { return Group{x.Kind, x.DType, x.Shape, x.Memory} }

func (s *Snapshot) place(p tables.Place, stream uint8) Place {
	t := tables.Of(&s.Tables)
	return Place{t.Sections[p.Section], tables.StreamOf(t.Streams, stream), t.Stacks.Stack(p.Stack), t.Stacks.Site(p.Stack)}
}

// CallSites iterates over the call stacks and what they allocated: by live bytes, then by total
// bytes, then in the order of groups, lines of code and sections.
func (s *Snapshot) CallSites() iter.Seq[CallSiteStats] {
	t := tables.Of(&s.Tables)
	order, stacks := make([]int32, len(t.Sites)+len(t.Retired)), stackOrder(t.Stacks)
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(i, j int32) int {
		x, y := s.callSite(i), s.callSite(j)
		if c := cmp.Or(cmp.Compare(y.Live.Bytes, x.Live.Bytes), cmp.Compare(y.Total.Bytes, x.Total.Bytes)); c != 0 {
			return c // the rest takes longer
		}
		a, b := s.placeOf(i), s.placeOf(j)
		return cmp.Or(
			x.Group.compare(y.Group),
			cmp.Compare(x.Memory, y.Memory),
			stacks(a.Stack, b.Stack),
			cmp.Compare(t.Sections[a.Section], t.Sections[b.Section]))
	})
	return func(yield func(CallSiteStats) bool) {
		for _, i := range order {
			site := s.callSite(i)
			site.Place = s.place(s.placeOf(i), s.streamOf(i))
			if !yield(site) {
				return
			}
		}
	}
}

// Sums iterates over the call sites in any order, without their stacks: of Place only CallSite, Section and Stream are set.
// For a recording with many call stacks this takes far less time and memory than CallSites.
func (s *Snapshot) Sums() iter.Seq[CallSiteStats] {
	t := tables.Of(&s.Tables)
	return func(yield func(CallSiteStats) bool) {
		for i := range int32(len(t.Sites) + len(t.Retired)) {
			site, place := s.callSite(i), s.placeOf(i)
			site.Place = Place{Section: t.Sections[place.Section], Stream: tables.StreamOf(t.Streams, s.streamOf(i)), CallSite: t.Stacks.Site(place.Stack)}
			if !yield(site) {
				return
			}
		}
	}
}

// callSite returns the call site of an index in the tables, those of Sites first, without its Place.
func (s *Snapshot) callSite(i int32) CallSiteStats {
	t := tables.Of(&s.Tables)
	if int(i) >= len(t.Sites) {
		e := &t.Retired[int(i)-len(t.Sites)]
		return CallSiteStats{Group: Group{Memory: e.Memory}, Totals: Totals{Total: e.Total}}
	}
	e := &t.Sites[i]
	g := e.Tensor
	return CallSiteStats{Group: groupOf(g), Totals: Totals{g.Tally(e.Live), g.Tally(e.Peak), g.Tally(e.Total)}}
}

func (s *Snapshot) placeOf(i int32) tables.Place {
	t := tables.Of(&s.Tables)
	if int(i) >= len(t.Sites) {
		return t.Retired[int(i)-len(t.Sites)].Place
	}
	return t.Sites[i].Place
}

// streamOf returns the index of a call site's stream: the default one for those of Retired.
func (s *Snapshot) streamOf(i int32) uint8 {
	t := tables.Of(&s.Tables)
	if int(i) >= len(t.Sites) {
		return 0
	}
	return t.Sites[i].Stream
}

// stackOrder returns how to compare stacks frame by frame, innermost first. There may be a hundred thousand: a source that
// makes each mem.Stack anew compares its own, those of others are kept until all are sorted.
func stackOrder(all tables.Stacks) func(a, b tables.StackID) int {
	if own, ok := all.(interface{ Compare(a, b tables.StackID) int }); ok {
		return own.Compare
	}
	named := make(map[tables.StackID]mem.Stack)
	get := func(id tables.StackID) mem.Stack {
		stack, ok := named[id]
		if !ok {
			stack = all.Stack(id)
			named[id] = stack
		}
		return stack
	}
	return func(a, b tables.StackID) int {
		if a == b {
			return 0
		}
		return compareStacks(get(a), get(b))
	}
}

// Sub returns how the live table of s differs from that of base, which may be
// of another tracker or another program. A nil base is an empty table: s.Sub(nil) is the live table, in the order of
// a report.
func (s *Snapshot) Sub(base *Snapshot) Delta {
	var b DeltaBuilder
	s.addTo(&b, 1)
	if base != nil {
		base.addTo(&b, -1)
	}
	return b.Delta()
}

func (s *Snapshot) addTo(b *DeltaBuilder, sign int64) {
	t := tables.Of(&s.Tables)
	for _, e := range t.Sites {
		if e.Live != 0 {
			b.Add(groupOf(e.Tensor), t.Stacks.Site(e.Stack), e.Tensor.Tally(sign*e.Live))
		}
	}
}

// String prints the live table as a report does, and the totals.
func (s *Snapshot) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s [%d] | %v live | %v reserved | peak %v\n", text.Printable([]byte(s.Device), 0), s.Ordinal, s.Live, s.Reserved, s.Peak)
	for _, line := range tables.MemoryLines(s.Memory) {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	b.WriteString(s.Sub(nil).String())
	return b.String()
}

// Devices are snapshots of several devices of one process, taken one after the other.
type Devices []*Snapshot

// String prints a line for each device and one for all of them, and then the live table of each.
func (d Devices) String() string {
	rows := [][]string{{"Device", "Live", "Peak", "Reserved", "Pending", "Driver used"}}
	var live mem.Tally
	var reserved, pending alloc.Bytes
	for _, s := range d {
		rows = append(rows, []string{s.name(), s.Live.String(), s.Peak.String(), s.Reserved.String(), s.Pending.String(), orUnknown(s.DriverUsed)})
		live = live.Add(s.Live)
		reserved, pending = reserved+s.Reserved, pending+s.Pending
	}
	if len(d) > 1 { // the peaks are not of one moment
		rows = append(rows, []string{fmt.Sprintf("%d devices", len(d)), live.String(), "", reserved.String(), pending.String(), ""})
	}
	var b strings.Builder
	writeColumns(&b, rows)
	for _, s := range d {
		if table := s.Sub(nil).String(); table != "" {
			fmt.Fprintf(&b, "\n%s\n%s\n", s.name(), table)
		}
	}
	return b.String()
}

// name is the device's name and ordinal: "Simulated GPU [0]".
func (s *Snapshot) name() string {
	return fmt.Sprintf("%s [%d]", text.Line(s.Device), s.Ordinal)
}

func orUnknown(n alloc.Bytes) string {
	if n < 0 {
		return "unknown"
	}
	return n.String()
}

// writeColumns writes rows with their columns aligned.
func writeColumns(b *strings.Builder, rows [][]string) {
	var width []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], len(cell))
		}
	}
	for _, row := range rows {
		var line []byte
		for i, cell := range row {
			line = text.AppendPadded(line, cell, width[i]+2)
		}
		b.WriteString(strings.TrimRight(string(line), " ") + "\n")
	}
}

// Origin is the process that memory belongs to; it distinguishes the ranks of a distributed run. What is
// unknown is zero. It does not change.
//
// The rank is that of the launcher, by the first of these pairs of the environment in which the
// rank is below the number of ranks: RANK and WORLD_SIZE (torchrun), OMPI_COMM_WORLD_RANK and _SIZE
// (Open MPI), MV2_COMM_WORLD_RANK and _SIZE (MVAPICH), PMI_RANK and PMI_SIZE (MPICH, Intel MPI),
// HOROVOD_RANK and HOROVOD_SIZE, SLURM_PROCID and SLURM_STEP_NUM_TASKS (srun). A RANK alone counts
// where there is no pair. If a program learns its rank in another way, set Config.Origin.
type Origin struct {
	Host      string `json:"host,omitempty"`
	PID       int    `json:"pid,omitempty"`
	Program   string `json:"program,omitempty"`    // the name of the executable
	Rank      *int   `json:"rank,omitempty"`       // from 0; nil if the process is not one of many. Do not write to it
	WorldSize int    `json:"world_size,omitempty"` // the number of ranks
	// Container is the container, pod or service that the process runs in, where attach watches it from outside:
	// "pod UID, containerd 0123456789ab", "docker 0123456789ab", "unit train.service".
	Container string `json:"container,omitempty"`
}

// check finds what no process has.
func (o Origin) check() error {
	if o.PID < 0 || o.WorldSize < 0 || o.Rank != nil && (*o.Rank < 0 || o.WorldSize > 0 && *o.Rank >= o.WorldSize) {
		return fmt.Errorf("there is no such process: %v", o)
	}
	return nil
}

// String names the process: "train[4242], rank 3 of 8 in docker 0123456789ab on node-1".
func (o Origin) String() string {
	process, rank := o.Program, ""
	if o.PID != 0 {
		process += fmt.Sprintf("[%d]", o.PID)
	}
	if o.Rank != nil {
		rank = fmt.Sprintf("rank %d", *o.Rank)
		if o.WorldSize != 0 {
			rank += fmt.Sprintf(" of %d", o.WorldSize)
		}
	}
	return join(" on ", join(" in ", join(", ", process, rank), o.Container), o.Host)
}

// join joins the words that are there.
func join(separator string, words ...string) string {
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), separator)
}

// compareStacks orders stacks by their frames. Equal stacks of one source often share their memory: then it compares no frame.
func compareStacks(s, t mem.Stack) int {
	if len(s) == len(t) && len(s) > 0 && &s[0] == &t[0] {
		return 0
	}
	return slices.CompareFunc(s, t, tables.CompareFrames)
}

// Read reads what WriteJSON wrote, packed by gzip or not. The error says what is wrong with the
// text: it is damaged, of another version, or contradicts itself.
func Read(r io.Reader) (*Snapshot, error) {
	in, err := jsonstream.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	s, err := readSnapshot(in)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("read snapshot: the text ends before the snapshot does: %w", io.ErrUnexpectedEOF)
	case err != nil:
		return nil, fmt.Errorf("read snapshot: %w", err)
	case s == nil:
		return nil, errors.New("read snapshot: it is null")
	}
	return s, nil
}

// UnmarshalJSON reads what WriteJSON wrote.
func (s *Snapshot) UnmarshalJSON(text []byte) error {
	in, err := jsonstream.NewReader(bytes.NewReader(text))
	if err != nil {
		return err
	}
	read, err := readSnapshot(in)
	if err == nil && read != nil {
		*s = *read
	}
	return err
}

// readSnapshot reads a snapshot; nil if it is null.
func readSnapshot(in *jsonstream.Reader) (*Snapshot, error) {
	var head snapshotHead
	lists, err := tablejson.ReadSnapshot(in, &head)
	if lists == nil || err != nil {
		return nil, err
	}
	return loadSnapshot(head, lists)
}

// maxOrdinal bounds the number of a device, by which formats have a list of devices.
const maxOrdinal = 1<<16 - 1

// loadSnapshot makes a snapshot from the parts of a file. The error says that it is no snapshot, or
// that the parts contradict each other.
func loadSnapshot(in snapshotHead, from *tablejson.Snapshot) (*Snapshot, error) {
	if err := jsonstream.CheckSchema(in.Schema, in.Version, jsonstream.SnapshotSchema, jsonstream.SnapshotVersion); err != nil {
		return nil, err
	}
	if in.Ordinal < 0 || in.Ordinal > maxOrdinal {
		return nil, fmt.Errorf("device %d: want 0 to %d", in.Ordinal, maxOrdinal)
	}
	if err := in.Origin.check(); err != nil {
		return nil, fmt.Errorf("origin: %w", err)
	}
	if err := tables.CheckStreams(in.Streams); err != nil {
		return nil, err
	}
	levels, err := in.levels()
	if err != nil {
		return nil, err
	}
	epoch := in.Time
	if !in.Start.IsZero() {
		epoch = in.Start
	}
	lists, err := from.Load(epoch, in.Streams)
	if err != nil {
		return nil, err
	}
	return &Snapshot{
		Time: in.Time, Origin: in.Origin, Device: in.Device, Ordinal: in.Ordinal, UUID: in.UUID, Levels: levels,
		Peak: in.Peak, Total: in.Total, Events: in.Events, Cache: in.Cache, Segments: from.Segments, Settings: in.Settings, Tables: tables.Wrap(lists),
	}, nil
}

// WriteJSON writes the snapshot as one JSON object, in memory that does not grow with the
// number of live buffers, but with the blocks of one segment. docs/snapshot.schema.json
// describes it. The error is the writer's.
func (s *Snapshot) WriteJSON(w io.Writer) error {
	out := jsonstream.NewWriter(w)
	s.writeTo(out)
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

func (s *Snapshot) writeTo(out *jsonstream.Writer) {
	lists := tables.Of(&s.Tables)
	out.Head(snapshotHead{
		jsonstream.SnapshotSchema, jsonstream.SnapshotVersion, s.Time, s.Origin, s.Device, s.Ordinal, s.UUID, s.Levels.json(), s.Peak, s.Total, s.Events, s.Cache, s.Settings, lists.Streams, s.start(),
	})
	tablejson.WriteSnapshot(out, lists, s.Segments)
	out.Bytes([]byte("}\n"))
}

// start returns from when on the windows of lifetimes count, if there are some.
func (s *Snapshot) start() time.Time {
	if tables.Of(&s.Tables).Paths == nil {
		return time.Time{}
	}
	return tables.Of(&s.Tables).Epoch
}

// MarshalJSON returns what WriteJSON writes.
func (s Snapshot) MarshalJSON() ([]byte, error) { return jsonstream.Marshal(s.WriteJSON) }

// snapshotHead is a snapshot's JSON form before its tables.
type snapshotHead struct {
	Schema  string    `json:"schema"`
	Version int       `json:"version"`
	Time    time.Time `json:"time"`
	Origin  Origin    `json:"origin,omitzero"`
	Device  string    `json:"device"`
	Ordinal int       `json:"ordinal"`
	UUID    string    `json:"uuid,omitempty"`
	levelsJSON
	Peak   mem.Tally    `json:"peak"`
	Total  mem.Tally    `json:"total"`
	Events uint64       `json:"events"`
	Cache  *alloc.Stats `json:"cache,omitempty"`

	Settings map[string]string `json:"settings,omitempty"`
	Streams  []alloc.Stream    `json:"streams,omitempty"`
	Start    time.Time         `json:"start,omitzero"` // from when on the windows of lifetimes count
}
