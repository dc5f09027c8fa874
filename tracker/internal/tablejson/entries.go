package tablejson

import (
	"encoding/json"
	"fmt"
	"math"
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
	if !jsonstream.Flat(text, func(key, value []byte, text bool) (ok bool) {
		var n uint64
		switch string(key) {
		case "address":
			n, ok = jsonstream.UintOf(value)
			b.Ptr = alloc.Ptr(n)
		case "bytes":
			n, ok = jsonstream.UintOf(value)
			b.Size = alloc.Bytes(n)
		case "requested_bytes":
			n, ok = jsonstream.UintOf(value)
			b.Requested = alloc.Bytes(n)
		case "state":
			return text && b.State.UnmarshalText(value) == nil
		}
		return ok && !text
	}) {
		*b = alloc.Block{}
		return json.Unmarshal(text, b)
	}
	return nil
}

// readSite reads a call site. Names in it are indices into the file's names.
func readSite(text []byte, e *siteJSON, names jsonstream.Texts) (err error) {
	if jsonstream.Flat(text, func(key, value []byte, text bool) (ok bool) {
		var n uint64
		switch string(key) {
		case "kind":
			e.Kind, err = mem.ParseKind(names.Of(value))
			return text && err == nil
		case "dtype":
			return text && e.DType.UnmarshalText(value) == nil
		case "section":
			e.Section = names.Of(value)
			return text
		case "shape":
			e.Shape = nil
			return jsonstream.FlatList(value, func(value []byte, text bool) bool {
				n, ok := jsonstream.UintOf(value)
				e.Shape = append(e.Shape, int(n))
				return ok && !text && uint64(int(n)) == n
			}) && e.Shape != nil // an empty one is not an unknown one
		case "call_site", "site":
			return readFrame(value, &e.Site, names) == nil
		case "stack":
			n, ok = jsonstream.UintOf(value)
			e.Stack = int(n)
			ok = ok && uint64(e.Stack) == n
		case "live_count":
			e.Live, ok = jsonstream.IntOf(value)
		case "peak_count":
			e.Peak, ok = jsonstream.IntOf(value)
		case "total_count":
			e.Total, ok = jsonstream.IntOf(value)
		}
		return ok && !text
	}) {
		return nil
	}
	*e = siteJSON{}
	return jsonstream.Unmarshal(text, e)
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
	if jsonstream.Flat(text, func(key, value []byte, text bool) (ok bool) {
		var n uint64
		switch string(key) {
		case "seq":
			a.Seq, ok = jsonstream.UintOf(value)
		case "time":
			a.Time, err = time.Parse(time.RFC3339Nano, string(value))
			return text && err == nil
		case "address":
			n, ok = jsonstream.UintOf(value)
			a.Ptr = alloc.Ptr(n)
		case "call_site", "site":
			n, ok = jsonstream.UintOf(value)
			a.Site = int(n)
		case "allocated_bytes":
			n, ok = jsonstream.UintOf(value)
			a.Allocated = alloc.Bytes(n)
		case "births":
			i := 0
			return jsonstream.FlatList(value, func(value []byte, text bool) bool {
				n, ok := jsonstream.UintOf(value)
				if ok = ok && !text && i < len(a.Births) && n <= math.MaxUint16; ok {
					a.Births[i] = uint16(n)
				}
				i++
				return ok
			}) && i == len(a.Births)
		}
		return ok && !text
	}) {
		return a, nil
	}
	a = allocationJSON{}
	return a, jsonstream.Unmarshal(text, &a)
}
