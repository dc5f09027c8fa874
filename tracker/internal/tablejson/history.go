package tablejson

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

type historyHead struct {
	Schema   string    `json:"schema"`
	Version  int       `json:"version"`
	Start    time.Time `json:"start"`
	First    uint64    `json:"first"` // sequence number of the first EventEntry
	Sections []string  `json:"sections"`

	Streams []alloc.Stream     `json:"streams,omitempty"`
	Pools   []tables.PoolEntry `json:"pools,omitempty"`
}

// historyTables are the tables: events refer to the others by index.
type historyTables struct {
	Stacks []historyStack `json:"stacks"`
	Frames []mem.Frame    `json:"frames"`
	Groups []historyGroup `json:"groups"`
	Events eventTable     `json:"events"`
	Frees  []historyFree  `json:"frees"` // not written if empty
}

type historyStack struct {
	Site   mem.Frame `json:"call_site"`
	Frames stackJSON `json:"frames"`
}

type historyGroup struct {
	Kind  mem.Kind    `json:"kind"`
	DType alloc.DType `json:"dtype,omitempty"`
	Shape alloc.Shape `json:"shape"`
	Each  alloc.Bytes `json:"each_bytes,omitempty"` // where the dtype is not known

	Memory alloc.Memory `json:"memory,omitzero"`
}

// historyEvent is an event. -1 as group or stack means none.
type historyEvent struct {
	Since   time.Duration `json:"ns"` // since the start
	Action  mem.Action    `json:"action"`
	Ptr     alloc.Ptr     `json:"address,omitempty"`
	Bytes   alloc.Bytes   `json:"bytes,omitempty"`  // allocated, or refused in an oom or a retry
	Number  int64         `json:"number,omitempty"` // of a mark, or of a section's span
	Group   int           `json:"group"`
	Stack   int           `json:"stack"`
	Section uint32        `json:"section,omitempty"`
	Stream  uint8         `json:"stream,omitempty"` // index in streams
}

// historyFree is the stack of a free.
type historyFree struct {
	Seq   uint64 `json:"seq"` // number of the event
	Stack int    `json:"stack"`
}

// WriteHistory writes a history as an object.
func WriteHistory(out *jsonstream.Writer, h *tables.HistoryTables) {
	index := indexOf(h)
	out.Head(historyHead{jsonstream.HistorySchema, jsonstream.HistoryVersion, h.Start, h.First, index.sections, h.Streams, h.Pools})
	frames := newFrameTable()
	jsonstream.Table(out, "stacks", index.stacks, func(b []byte, id tables.StackID) ([]byte, error) {
		site, err := json.Marshal(h.Stacks.Site(id))
		b = append(append(append(b, `{"call_site":`...), site...), `,"frames":`...)
		return append(frames.appendStack(b, h.Stacks.Stack(id)), '}'), err
	})
	frames.write(out, len(index.stacks))
	jsonstream.Table(out, "groups", index.groups, jsonstream.AsJSON(func(g *tables.Tensor) any { return historyGroup{g.Kind, g.DType, g.Shape, g.Unknown(), g.Memory} }))
	jsonstream.Table(out, "events", h.Events, func(b []byte, e tables.EventEntry) ([]byte, error) { return index.event(e).appendJSON(b), nil })
	if len(h.Frees) > 0 {
		jsonstream.Table(out, "frees", h.Frees, jsonstream.AsJSON(func(f tables.FreeEntry) any { return historyFree{f.Seq, index.ofStack[f.Stack]} }))
	}
	out.Bytes([]byte("}\n"))
}

// historyIndex numbers what the events of a history refer to.
type historyIndex struct {
	stacks    []tables.StackID
	groups    []*tables.Tensor
	sections  []string
	ofStack   map[tables.StackID]int
	ofGroup   map[*tables.Tensor]int
	ofSection map[uint16]uint32
}

func indexOf(h *tables.HistoryTables) *historyIndex {
	x := &historyIndex{
		sections:  []string{""},
		ofStack:   map[tables.StackID]int{0: -1},
		ofGroup:   map[*tables.Tensor]int{nil: -1},
		ofSection: map[uint16]uint32{0: 0},
	}
	for _, e := range h.Events {
		x.addStack(e.Stack)
		if _, ok := x.ofGroup[e.Tensor]; !ok {
			x.ofGroup[e.Tensor] = len(x.groups)
			x.groups = append(x.groups, e.Tensor)
		}
		if _, ok := x.ofSection[e.Section]; !ok {
			x.ofSection[e.Section] = uint32(len(x.sections))
			x.sections = append(x.sections, h.Sections[e.Section])
		}
	}
	for _, f := range h.Frees {
		x.addStack(f.Stack)
	}
	return x
}

func (x *historyIndex) addStack(id tables.StackID) {
	if _, ok := x.ofStack[id]; !ok {
		x.ofStack[id] = len(x.stacks)
		x.stacks = append(x.stacks, id)
	}
}

func (x *historyIndex) event(e tables.EventEntry) historyEvent {
	out := historyEvent{
		Since: e.Since, Action: e.Action, Ptr: e.Ptr,
		Group: x.ofGroup[e.Tensor], Stack: x.ofStack[e.Stack], Section: x.ofSection[e.Section], Stream: e.Stream,
	}
	if actionNumbered(e.Action) {
		out.Number = int64(e.Allocated)
	} else {
		out.Bytes = e.Allocated
	}
	return out
}

// appendJSON writes what the struct's tags say.
func (e historyEvent) appendJSON(b []byte) []byte {
	b = strconv.AppendInt(append(b, `{"ns":`...), int64(e.Since), 10)
	b = append(append(append(b, `,"action":"`...), e.Action.String()...), '"')
	if e.Ptr != 0 {
		b = strconv.AppendUint(append(b, `,"address":`...), uint64(e.Ptr), 10)
	}
	if e.Bytes != 0 {
		b = strconv.AppendInt(append(b, `,"bytes":`...), int64(e.Bytes), 10)
	}
	if e.Number != 0 {
		b = strconv.AppendInt(append(b, `,"number":`...), e.Number, 10)
	}
	b = strconv.AppendInt(append(b, `,"group":`...), int64(e.Group), 10)
	b = strconv.AppendInt(append(b, `,"stack":`...), int64(e.Stack), 10)
	if e.Section != 0 {
		b = strconv.AppendUint(append(b, `,"section":`...), uint64(e.Section), 10)
	}
	if e.Stream != 0 {
		b = strconv.AppendUint(append(b, `,"stream":`...), uint64(e.Stream), 10)
	}
	return append(b, '}')
}

// The memory of each entry of the tables, in bytes, as jsonstream.Reader.Use counts it.
const (
	eventBytes = 160
	groupBytes = 192
	freeBytes  = 48
)

// ReadHistory reads a history; nil if it is null.
func ReadHistory(in *jsonstream.Reader) (*tables.HistoryTables, error) {
	var head historyHead
	var lists historyTables
	var small jsonstream.Rest
	found, err := in.Members(func(key string) error {
		switch key {
		case "stacks":
			return jsonstream.ReadTable(in, &lists.Stacks, siteEntryBytes, func(text []byte, e *historyStack) error {
				if err := in.Use(int64(len(text)) * frameEntryBytes / 2); err != nil {
					return err
				}
				return jsonstream.Unmarshal(text, e)
			})
		case "frames":
			return jsonstream.ReadTable(in, &lists.Frames, frameEntryBytes, jsonstream.Unmarshal)
		case "groups":
			return jsonstream.ReadTable(in, &lists.Groups, groupBytes, jsonstream.Unmarshal)
		case "events":
			return lists.Events.readFrom(in)
		case "frees":
			return jsonstream.ReadTable(in, &lists.Frees, freeBytes, jsonstream.Unmarshal)
		}
		return small.Add(in, key)
	})
	if !found || err != nil {
		return nil, err
	}
	if err := small.Unmarshal(&head); err != nil {
		return nil, err
	}
	return loadHistory(head, lists)
}

// eventTable is the events of a file. The groups, stacks and sections that they refer to may come later in the file.
type eventTable struct {
	entries []tables.EventEntry // without their tensors
	groups  []int32             // of each entry
}

func (t *eventTable) readFrom(in *jsonstream.Reader) error {
	return in.Elements(func() error {
		text, err := in.Raw()
		if err == nil {
			err = in.Use(eventBytes)
		}
		if err != nil {
			return err
		}
		var e historyEvent
		if err := readEvent(text, &e); err != nil {
			return err
		}
		return t.add(&e)
	})
}

func (t *eventTable) add(e *historyEvent) error {
	stack := tables.StackID(e.Stack + 1)
	if int(stack) != e.Stack+1 || int(int32(e.Group)) != e.Group || uint32(uint16(e.Section)) != e.Section {
		return fmt.Errorf("event %d: there is no group %d, stack %d or section %d", len(t.entries), e.Group, e.Stack, e.Section)
	}
	bytes := e.Bytes
	if actionNumbered(e.Action) {
		bytes = alloc.Bytes(e.Number)
	}
	t.entries = append(t.entries, tables.EventEntry{
		Since: e.Since, Action: e.Action, Ptr: e.Ptr, Allocated: bytes, Stack: stack, Section: uint16(e.Section), Stream: e.Stream,
	})
	t.groups = append(t.groups, int32(e.Group))
	return nil
}

// load returns the events with their tensors.
func (t *eventTable) load(groups []*tables.Tensor, stacks, sections int) ([]tables.EventEntry, error) {
	for i := range t.entries {
		e, group := &t.entries[i], int(t.groups[i])
		if group < -1 || group >= len(groups) || int64(e.Stack) > int64(stacks) || int(e.Section) >= sections {
			return nil, fmt.Errorf("event %d: group %d of %d, stack %d of %d, section %d of %d", i, group, len(groups), int64(e.Stack)-1, stacks, e.Section, sections)
		}
		if group >= 0 {
			e.Tensor = groups[group]
		}
	}
	return t.entries, nil
}

func readEvent(text []byte, e *historyEvent) error {
	return jsonstream.UnmarshalFlat(text, e, func(key, value []byte, text bool) bool {
		switch string(key) {
		case "ns":
			return !text && jsonstream.Number(value, &e.Since)
		case "action":
			return text && e.Action.UnmarshalText(value) == nil
		case "address":
			return !text && jsonstream.Number(value, &e.Ptr)
		case "bytes":
			return !text && jsonstream.Number(value, &e.Bytes)
		case "number":
			return !text && jsonstream.Number(value, &e.Number)
		case "group":
			return !text && jsonstream.Number(value, &e.Group)
		case "stack":
			return !text && jsonstream.Number(value, &e.Stack)
		case "section":
			return !text && jsonstream.Number(value, &e.Section)
		case "stream":
			return !text && jsonstream.Number(value, &e.Stream)
		}
		return false
	})
}

// loadHistory makes a history from the parts of a file. The error says that it is no history, or
// that the parts contradict each other.
func loadHistory(head historyHead, lists historyTables) (*tables.HistoryTables, error) {
	in := struct {
		historyHead
		historyTables
	}{head, lists}
	if err := jsonstream.CheckSchema(in.Schema, in.Version, jsonstream.HistorySchema, jsonstream.HistoryVersion); err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	if len(in.Sections) == 0 {
		return nil, errors.New("read history: it has no sections, not even the outside of all")
	}
	stacks, groups, err := in.historyTables.load()
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	if len(in.Sections) > tables.MaxSections {
		return nil, fmt.Errorf("read history: %d sections, want at most %d", len(in.Sections), tables.MaxSections)
	}
	if err := tables.CheckStreams(in.Streams); err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	if !slices.IsSortedFunc(in.Pools, func(a, b tables.PoolEntry) int { return cmp.Compare(a.Seq, b.Seq) }) {
		return nil, errors.New("read history: its pools are not in the order of their events")
	}
	loaded := &tables.HistoryTables{First: in.First, Start: in.Start, Sections: in.Sections, Stacks: stacks, Streams: in.Streams, Pools: in.Pools}
	if loaded.Events, err = in.Events.load(groups, len(in.Stacks), len(in.Sections)); err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	if loaded.Frees, err = in.historyTables.loadFrees(); err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	return loaded, nil
}

func (in historyTables) loadFrees() (frees []tables.FreeEntry, err error) {
	for i, f := range in.Frees {
		if f.Stack < 0 || f.Stack >= len(in.Stacks) {
			return nil, fmt.Errorf("free %d: stack %d of %d", i, f.Stack, len(in.Stacks))
		}
		if i > 0 && f.Seq <= in.Frees[i-1].Seq {
			return nil, fmt.Errorf("free %d: it is not behind the one before it", i)
		}
		frees = append(frees, tables.FreeEntry{Seq: f.Seq, Stack: tables.StackID(f.Stack + 1)})
	}
	return frees, nil
}

func (in historyTables) load() (*tables.StackTable, []*tables.Tensor, error) {
	stacks := new(tables.StackTable)
	for i, s := range in.Stacks {
		stack, err := s.Frames.load(in.Frames)
		if err != nil {
			return nil, nil, fmt.Errorf("stack %d: %w", i, err)
		}
		stacks.Add(stack, s.Site)
	}
	var groups []*tables.Tensor
	for i, g := range in.Groups {
		x, err := tables.ReadTensor(g.Shape, g.DType, g.Kind, g.Memory, g.Each)
		if err != nil {
			return nil, nil, fmt.Errorf("group %d: %w", i, err)
		}
		groups = append(groups, &x)
	}
	return stacks, groups, nil
}

// actionNumbered reports whether an event with that action has a number in place of bytes.
func actionNumbered(a mem.Action) bool {
	return a == mem.Marked || a == mem.SectionBegan || a == mem.SectionEnded
}
