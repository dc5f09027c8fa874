package tablejson

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// WriteSnapshot writes a snapshot's tables and segments as the next members of an object.
func WriteSnapshot(out *jsonstream.Writer, t *tables.Tables, segments []alloc.Segment) {
	if len(segments) > 0 {
		jsonstream.Table(out, "segments", segments, jsonstream.AsJSON(func(s alloc.Segment) any { return s }))
	}
	index, order := usedStacks(t)
	frames := newFrameTable()
	jsonstream.Table(out, "stacks", order, func(b []byte, id tables.StackID) ([]byte, error) {
		return frames.appendStack(b, t.Stacks.Stack(id)), nil
	})
	frames.write(out, len(order))
	jsonstream.Table(out, "call_sites", t.Sites, jsonstream.AsJSON(func(e tables.SiteEntry) any {
		g := e.Tensor
		return siteJSON{g.Kind, g.DType, g.Shape, t.Sections[e.Section], index[e.Stack], t.Stacks.Site(e.Stack), e.Live, e.Peak, e.Total, e.Stream, g.Unknown(), g.Memory}
	}))
	if len(t.Retired) > 0 {
		jsonstream.Table(out, "retired", t.Retired, jsonstream.AsJSON(func(e tables.RetiredEntry) any {
			return retiredJSON{t.Sections[e.Section], index[e.Stack], t.Stacks.Site(e.Stack), e.Total, e.Memory}
		}))
	}
	jsonstream.Table(out, "allocations", t.Allocations, func(b []byte, a tables.AllocationEntry) ([]byte, error) {
		return allocationJSON{
			a.Seq, t.Epoch.Add(a.Since), a.Ptr, int(a.Site), a.Allocated, a.Label, t.Sections[t.Sites[a.Site].Section], a.Foreign, a.Lost, births(t, a),
		}.appendJSON(b)
	})
	writeLifetimes(out, t, index)
}

// usedStacks numbers the stacks that the snapshot refers to.
func usedStacks(t *tables.Tables) (index map[tables.StackID]int, order []tables.StackID) {
	index = map[tables.StackID]int{0: -1}
	use := func(id tables.StackID) {
		if _, ok := index[id]; !ok {
			index[id] = len(order)
			order = append(order, id)
		}
	}
	for _, e := range t.Sites {
		use(e.Stack)
	}
	for _, e := range t.Retired {
		use(e.Stack)
	}
	return index, order
}

// appendJSON writes what the struct's tags say.
func (a allocationJSON) appendJSON(b []byte) ([]byte, error) {
	b = strconv.AppendUint(append(b, `{"seq":`...), a.Seq, 10)
	b = a.Time.AppendFormat(append(b, `,"time":"`...), time.RFC3339Nano)
	b = strconv.AppendUint(append(b, `","address":`...), uint64(a.Ptr), 10)
	b = strconv.AppendInt(append(b, `,"call_site":`...), int64(a.Site), 10)
	b = strconv.AppendInt(append(b, `,"allocated_bytes":`...), int64(a.Allocated), 10)
	for _, text := range [...]struct{ key, value string }{{`,"label":`, a.Label}, {`,"section":`, a.Section}} {
		if text.value != "" {
			quoted, err := json.Marshal(text.value)
			if err != nil {
				return b, err
			}
			b = append(append(b, text.key...), quoted...)
		}
	}
	if a.Registered {
		b = append(b, `,"registered":true`...)
	}
	if a.Lost {
		b = append(b, `,"lost":true`...)
	}
	if a.Births != [2]uint16{} {
		b = strconv.AppendUint(append(b, `,"births":[`...), uint64(a.Births[0]), 10)
		b = append(strconv.AppendUint(append(b, ','), uint64(a.Births[1]), 10), ']')
	}
	return append(b, '}'), nil
}

// Snapshot is the tables of a snapshot as a file has them: they refer to each other by index.
type Snapshot struct {
	Segments    []alloc.Segment
	Stacks      []stackJSON
	Frames      []mem.Frame
	Sites       []siteJSON
	Retired     []retiredJSON
	Allocations allocationTable
	Lifetimes   []lifetimesJSON
	Paths       []pathJSON
	counted     bool // a list of paths exists, though it may be empty
}

// siteJSON is the JSON form of a SiteEntry. live, peak and total count buffers.
type siteJSON struct {
	Kind    mem.Kind    `json:"kind"`
	DType   alloc.DType `json:"dtype,omitempty"`
	Shape   alloc.Shape `json:"shape"`
	Section string      `json:"section,omitempty"`
	Stack   int         `json:"stack"` // index in stacks; -1 is unknown
	Site    mem.Frame   `json:"call_site"`
	Live    int64       `json:"live_count"`
	Peak    int64       `json:"peak_count"`
	Total   int64       `json:"total_count"`
	Stream  uint8       `json:"stream,omitempty"`     // index in streams
	Each    alloc.Bytes `json:"each_bytes,omitempty"` // where the dtype is not known

	Memory alloc.Memory `json:"memory,omitzero"`
}

type retiredJSON struct {
	Section string    `json:"section,omitempty"`
	Stack   int       `json:"stack"`
	Site    mem.Frame `json:"call_site"`
	Total   mem.Tally `json:"total"`

	Memory alloc.Memory `json:"memory,omitzero"`
}

type allocationJSON struct {
	Seq        uint64      `json:"seq"`
	Time       time.Time   `json:"time"`
	Ptr        alloc.Ptr   `json:"address"`
	Site       int         `json:"call_site"` // index in call_sites
	Allocated  alloc.Bytes `json:"allocated_bytes"`
	Label      string      `json:"label,omitempty"`
	Section    string      `json:"section,omitempty"`
	Registered bool        `json:"registered,omitempty"`
	Lost       bool        `json:"lost,omitempty"`
	Births     [2]uint16   `json:"births,omitzero"` // number of births of its line, and of its path, up to this one, modulo 2^16
}

// allocationTable is the allocations of a file. The call sites and sections that they refer to may
// come later in the file.
type allocationTable struct {
	base     time.Time // Since counts from here
	entries  []tables.AllocationEntry
	sections []string // section of each entry; nil while no entry has one
}
