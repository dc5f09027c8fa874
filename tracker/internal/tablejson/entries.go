package tablejson

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// readSegment reads a segment. One whose blocks do not tile it is an error.
func readSegment(in *jsonstream.Reader) (alloc.Segment, error) {
	var s alloc.Segment
	var blocks []alloc.Block
	var small jsonstream.Rest
	_, err := in.Members(func(key string) error {
		if key == "blocks" {
			return jsonstream.ReadTable(in, &blocks, blockEntryBytes, readBlock)
		}
		return small.Add(in, key)
	})
	if err == nil {
		err = small.Unmarshal(&s)
	}
	if err != nil {
		return alloc.Segment{}, err
	}
	s.Blocks = slices.Clip(blocks)
	return s, s.Check()
}

func readBlock(text []byte, b *alloc.Block) error {
	return jsonstream.UnmarshalFlat(text, b, func(key, value []byte, text bool) bool {
		switch string(key) {
		case "address":
			return !text && jsonstream.Number(value, &b.Ptr)
		case "bytes":
			return !text && jsonstream.Number(value, &b.Size)
		case "requested_bytes":
			return !text && jsonstream.Number(value, &b.Requested)
		case "state":
			return text && b.State.UnmarshalText(value) == nil
		}
		return false
	})
}

// readSite reads a call site. Names in it are indices into the file's names.
func readSite(text []byte, e *siteJSON, names jsonstream.Texts) error {
	return jsonstream.UnmarshalFlat(text, e, func(key, value []byte, text bool) bool {
		switch string(key) {
		case "kind":
			kind, err := mem.ParseKind(names.Of(value))
			e.Kind = kind
			return text && err == nil
		case "dtype":
			return text && e.DType.UnmarshalText(value) == nil
		case "section":
			e.Section = names.Of(value)
			return text
		case "shape":
			e.Shape = nil
			return !text && jsonstream.FlatList(value, func(value []byte, text bool) bool {
				e.Shape = append(e.Shape, 0)
				return !text && jsonstream.Number(value, &e.Shape[len(e.Shape)-1])
			}) && e.Shape != nil // an empty one is not an unknown one
		case "call_site", "site":
			return !text && readFrame(value, &e.Site, names) == nil
		case "stack":
			return !text && jsonstream.Number(value, &e.Stack)
		case "live_count":
			return !text && jsonstream.Number(value, &e.Live)
		case "peak_count":
			return !text && jsonstream.Number(value, &e.Peak)
		case "total_count":
			return !text && jsonstream.Number(value, &e.Total)
		}
		return false
	})
}

func (t *allocationTable) readFrom(in *jsonstream.Reader) error {
	return in.Elements(func() error {
		text, err := in.Raw()
		if err == nil {
			err = in.Use(allocationBytes)
		}
		if err != nil {
			return err
		}
		a, err := readAllocation(text)
		if err != nil {
			return err
		}
		return t.add(a)
	})
}

func (t *allocationTable) add(a allocationJSON) error {
	if a.Site != int(int32(a.Site)) {
		return fmt.Errorf("allocation %d: there is no call site %d", len(t.entries), a.Site)
	}
	if len(t.entries) == 0 {
		t.base = a.Time
	}
	if a.Section != "" && t.sections == nil {
		t.sections = make([]string, len(t.entries), cap(t.entries))
	}
	if t.sections != nil {
		t.sections = append(t.sections, a.Section)
	}
	t.entries = append(t.entries, tables.AllocationEntry{
		Site: int32(a.Site), Foreign: a.Registered, Lost: a.Lost, InLine: a.Births[0], InPath: a.Births[1], Ptr: a.Ptr,
		Allocated: a.Allocated, Since: a.Time.Sub(t.base), Seq: a.Seq, Label: a.Label,
	})
	return nil
}

func readAllocation(text []byte) (a allocationJSON, err error) {
	err = jsonstream.UnmarshalFlat(text, &a, func(key, value []byte, text bool) bool {
		switch string(key) {
		case "seq":
			return !text && jsonstream.Number(value, &a.Seq)
		case "time":
			at, err := time.Parse(time.RFC3339Nano, string(value))
			a.Time = at
			return text && err == nil
		case "address":
			return !text && jsonstream.Number(value, &a.Ptr)
		case "call_site", "site":
			return !text && jsonstream.Number(value, &a.Site)
		case "allocated_bytes":
			return !text && jsonstream.Number(value, &a.Allocated)
		case "births":
			i := 0
			return !text && jsonstream.FlatList(value, func(value []byte, text bool) bool {
				i++
				return !text && i <= len(a.Births) && jsonstream.Number(value, &a.Births[i-1])
			}) && i == len(a.Births)
		}
		return false
	})
	return a, err
}
