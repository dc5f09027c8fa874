package snapshot

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
)

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
	out.Head(snapshotHead{
		SnapshotSchema, SnapshotVersion, s.Time, s.Origin, s.Device, s.Ordinal, s.Levels, s.Peak, s.Total, s.Events, s.Cache, s.Settings, s.tables.Streams, s.warm(),
	})
	s.writeTables(out)
	out.Bytes([]byte("}\n"))
}

func (s *Snapshot) writeTables(out *jsonstream.Writer) {
	if len(s.Segments) > 0 {
		jsonstream.Table(out, "segments", s.Segments, func(b []byte, e alloc.Segment) ([]byte, error) {
			text, err := json.Marshal(e)
			return append(b, text...), err
		})
	}
	index, order := s.usedStacks()
	frames := newFrameTable()
	jsonstream.Table(out, "stacks", order, func(b []byte, id tables.StackID) ([]byte, error) {
		return frames.appendStack(b, s.tables.Stacks.Stack(id)), nil
	})
	frames.write(out, len(order))
	jsonstream.Table(out, "sites", s.tables.Sites, jsonstream.AsJSON(func(e tables.SiteEntry) any {
		g := e.Tensor
		return siteJSON{g.Kind, g.DType, g.Shape, s.tables.Sections[e.Section], index[e.Stack], s.tables.Stacks.Site(e.Stack), e.Live, e.Peak, e.Total, e.Stream, g.Unknown(), g.Memory}
	}))
	if len(s.tables.Retired) > 0 {
		jsonstream.Table(out, "retired", s.tables.Retired, jsonstream.AsJSON(func(e tables.RetiredEntry) any {
			return retiredJSON{s.tables.Sections[e.Section], index[e.Stack], s.tables.Stacks.Site(e.Stack), e.Total, e.Memory}
		}))
	}
	jsonstream.Table(out, "allocations", s.tables.Allocations, func(b []byte, a tables.AllocationEntry) ([]byte, error) {
		return allocationJSON{
			a.Seq, s.tables.Epoch.Add(a.Since), a.Ptr, int(a.Site), a.Allocated, a.Label, s.tables.Sections[s.tables.Sites[a.Site].Section], a.Foreign, a.Lost,
		}.appendJSON(b)
	})
	if lines := s.tables.LifetimesJSON(); len(lines) > 0 {
		jsonstream.Table(out, "lifetimes", lines, jsonstream.AsJSON(func(l tables.LifetimesJSON) any { return l }))
	}
	if lines := s.tables.SeriesJSON(); len(lines) > 0 {
		jsonstream.Table(out, "growing", lines, jsonstream.AsJSON(func(l tables.SeriesJSON) any { return l }))
	}
}

// warm returns the end of the warm-up, if anything grows since.
func (s *Snapshot) warm() time.Time {
	if len(s.tables.Growing) == 0 {
		return time.Time{}
	}
	return s.tables.Epoch.Add(s.tables.Warm)
}

// usedStacks numbers the stacks that the snapshot refers to.
func (s *Snapshot) usedStacks() (index map[tables.StackID]int, order []tables.StackID) {
	index = map[tables.StackID]int{0: -1}
	use := func(id tables.StackID) {
		if _, ok := index[id]; !ok {
			index[id] = len(order)
			order = append(order, id)
		}
	}
	for _, e := range s.tables.Sites {
		use(e.Stack)
	}
	for _, e := range s.tables.Retired {
		use(e.Stack)
	}
	return index, order
}

// MarshalJSON is WriteJSON into memory.
func (s *Snapshot) MarshalJSON() ([]byte, error) { return jsonstream.Marshal(s.WriteJSON) }

// appendJSON writes what the struct's tags say.
func (a allocationJSON) appendJSON(b []byte) ([]byte, error) {
	b = strconv.AppendUint(append(b, `{"seq":`...), a.Seq, 10)
	b = a.Time.AppendFormat(append(b, `,"time":"`...), time.RFC3339Nano)
	b = strconv.AppendUint(append(b, `","address":`...), uint64(a.Ptr), 10)
	b = strconv.AppendInt(append(b, `,"site":`...), int64(a.Site), 10)
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
	return append(b, '}'), nil
}
