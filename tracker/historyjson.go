package tracker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// The schema of a history's JSON form. The version rises when a reader of the
// one before would misread it; files of earlier versions are read. In version 1 a stack
// was its frames, now it is their numbers in a table.
const (
	HistorySchema  = "gpumemtrack.history"
	HistoryVersion = 2
)

type historyHead struct {
	Schema   string    `json:"schema"`
	Version  int       `json:"version"`
	Start    time.Time `json:"start"`
	First    uint64    `json:"first"` // sequence number of the first event
	Sections []string  `json:"sections"`
}

// historyTables are the tables: events refer to the others by index.
type historyTables struct {
	Stacks []historyStack `json:"stacks"`
	Frames []Frame        `json:"frames"`
	Groups []historyGroup `json:"groups"`
	Events []historyEvent `json:"events"`
}

type historyStack struct {
	Site   Frame     `json:"site"`
	Frames stackJSON `json:"frames"`
}

type historyGroup struct {
	Kind  Kind        `json:"kind"`
	DType alloc.DType `json:"dtype"`
	Shape alloc.Shape `json:"shape"`
}

// historyEvent is an event; of group and stack, -1 is none.
type historyEvent struct {
	Since   time.Duration `json:"ns"` // since the start
	Action  Action        `json:"action"`
	Ptr     alloc.Ptr     `json:"address,omitempty"`
	Bytes   alloc.Bytes   `json:"bytes,omitempty"`  // allocated, or asked for in an oom
	Number  int64         `json:"number,omitempty"` // of a mark or a section's span
	Group   int           `json:"group"`
	Stack   int           `json:"stack"`
	Section uint32        `json:"section,omitempty"`
}

// WriteJSON writes the history as one JSON object, in memory that does not grow
// with the number of events. Only what the events use of the stacks, groups and
// sections is written.
func (h *History) WriteJSON(w io.Writer) error {
	out := newTableWriter(w)
	h.writeTo(out)
	if err := out.flush(); err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	return nil
}

func (h *History) writeTo(out *tableWriter) {
	index := h.index()
	out.head(historyHead{HistorySchema, HistoryVersion, h.start, h.first, index.sections})
	frames := newFrameTable()
	table(out, "stacks", index.stacks, func(b []byte, id callstack.ID) ([]byte, error) {
		site, err := json.Marshal(h.stacks.site(id))
		b = append(append(append(b, `{"site":`...), site...), `,"frames":`...)
		return append(frames.appendStack(b, h.stacks.resolve(id)), '}'), err
	})
	frames.write(out, len(index.stacks))
	table(out, "groups", index.groups, asJSON(func(g *group) any { return historyGroup{g.kind, g.dtype, g.shape} }))
	table(out, "events", h.events, func(b []byte, e event) ([]byte, error) { return index.event(e).appendJSON(b), nil })
	out.bytes([]byte("}\n"))
}

// MarshalJSON is WriteJSON into memory.
func (h *History) MarshalJSON() ([]byte, error) { return marshal(h.WriteJSON) }

// historyIndex numbers what the events of a history refer to.
type historyIndex struct {
	stacks    []callstack.ID
	groups    []*group
	sections  []string
	ofStack   map[callstack.ID]int
	ofGroup   map[*group]int
	ofSection map[uint16]uint32
}

func (h *History) index() *historyIndex {
	x := &historyIndex{
		sections:  []string{""},
		ofStack:   map[callstack.ID]int{0: -1},
		ofGroup:   map[*group]int{nil: -1},
		ofSection: map[uint16]uint32{uint16(noPath): 0},
	}
	for _, e := range h.events {
		if _, ok := x.ofStack[e.stack]; !ok {
			x.ofStack[e.stack] = len(x.stacks)
			x.stacks = append(x.stacks, e.stack)
		}
		if _, ok := x.ofGroup[e.group]; !ok {
			x.ofGroup[e.group] = len(x.groups)
			x.groups = append(x.groups, e.group)
		}
		if _, ok := x.ofSection[e.section]; !ok {
			x.ofSection[e.section] = uint32(len(x.sections))
			x.sections = append(x.sections, h.sections[e.section])
		}
	}
	return x
}

func (x *historyIndex) event(e event) historyEvent {
	out := historyEvent{
		Since: e.since, Action: e.action, Ptr: e.ptr,
		Group: x.ofGroup[e.group], Stack: x.ofStack[e.stack], Section: x.ofSection[e.section],
	}
	if e.action.numbered() {
		out.Number = int64(e.allocated)
	} else {
		out.Bytes = e.allocated
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
	return append(b, '}')
}

// numbered reports whether an event of that action holds a number instead of bytes.
func (a Action) numbered() bool { return a == Marked || a == SectionBegan || a == SectionEnded }

// UnmarshalJSON reads what WriteJSON wrote.
func (h *History) UnmarshalJSON(text []byte) error {
	var in struct {
		historyHead
		historyTables
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	if err := checkSchema(in.Schema, in.Version, HistorySchema, HistoryVersion); err != nil {
		return fmt.Errorf("read history: %w", err)
	}
	if len(in.Sections) == 0 {
		return errors.New("read history: it has no sections, not even the outside of all")
	}
	stacks, groups, err := in.historyTables.load()
	if err != nil {
		return fmt.Errorf("read history: %w", err)
	}
	if len(in.Sections) > maxSections {
		return fmt.Errorf("read history: %d sections, want at most %d", len(in.Sections), maxSections)
	}
	loaded := History{first: in.First, start: in.Start, sections: in.Sections, stacks: stacks}
	for i, e := range in.Events {
		if e.Group < -1 || e.Group >= len(groups) || e.Stack < -1 || e.Stack >= len(in.Stacks) || int64(e.Section) >= int64(len(in.Sections)) {
			return fmt.Errorf("read history: event %d: group %d of %d, stack %d of %d, section %d of %d",
				i, e.Group, len(groups), e.Stack, len(in.Stacks), e.Section, len(in.Sections))
		}
		read := event{since: e.Since, action: e.Action, ptr: e.Ptr, allocated: e.Bytes, stack: callstack.ID(e.Stack + 1), section: uint16(e.Section)}
		if e.Action.numbered() {
			read.allocated = alloc.Bytes(e.Number)
		}
		if e.Group >= 0 {
			read.group = groups[e.Group]
		}
		loaded.events = append(loaded.events, read)
	}
	*h = loaded
	return nil
}

func (in historyTables) load() (loadedStacks, []*group, error) {
	var stacks loadedStacks
	for i, s := range in.Stacks {
		stack, err := s.Frames.load(in.Frames)
		if err != nil {
			return loadedStacks{}, nil, fmt.Errorf("stack %d: %w", i, err)
		}
		stacks.stacks = append(stacks.stacks, stack)
		stacks.sites = append(stacks.sites, s.Site)
	}
	var groups []*group
	for i, g := range in.Groups {
		x, err := newTensor(g.Shape, g.DType, g.Kind)
		if err != nil {
			return loadedStacks{}, nil, fmt.Errorf("group %d: %w", i, err)
		}
		groups = append(groups, &group{tensor: x})
	}
	return stacks, groups, nil
}
