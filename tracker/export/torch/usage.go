package torch

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/labels"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// usage sums the devices up by call stack, kind, section, stream and the size of each buffer.
func (in *source) usage(dumps []*snapshot.Dump) *export.Usage {
	u := &export.Usage{Origin: in.origin}
	type key struct {
		stack  lines.StackID
		site   mem.Frame
		device int
		kind   mem.Kind
		dtype  alloc.DType
		memory alloc.Memory
		shape  string
		path   string
		stream alloc.Stream
		each   alloc.Bytes
	}
	rows := make(map[key]*export.Row)
	var order []*export.Row
	for _, d := range dumps {
		if d.Snapshot.Time.After(u.Time) {
			u.Time = d.Snapshot.Time
		}
		for site := range d.Snapshot.CallSites() {
			k := key{lines.Identify(site.Stack), site.CallSite, d.Snapshot.Ordinal, site.Kind, 0, site.Memory, "", site.Section, site.Stream, 0}
			if site.Total.Count > 0 { // the buffers of a call site have one size
				k.each = site.Total.Bytes / alloc.Bytes(site.Total.Count)
			}
			if site.DType.Bits() > 0 {
				k.dtype, k.shape = site.DType, site.Shape.String()
			}
			row, ok := rows[k]
			if !ok {
				row = in.row(d.Snapshot, site, k.shape)
				rows[k], order = row, append(order, row)
			}
			row.Live, row.Peak, row.Total = row.Live.Add(site.Live), row.Peak.Add(site.Peak), row.Total.Add(site.Total)
		}
	}
	for _, row := range order {
		if labels.OnHost(row.Memory) {
			u.Host = append(u.Host, *row)
		} else {
			u.Rows = append(u.Rows, *row)
		}
	}
	in.forgetPast(u, dumps)
	return u
}

// row returns a call stack's row, without its amounts.
func (in *source) row(s *snapshot.Snapshot, site snapshot.CallSiteStats, shape string) *export.Row {
	row := &export.Row{
		Stack: site.Stack, CallSite: site.CallSite, Kind: site.Kind.String(), Section: site.Section, Device: in.deviceName(s), Stream: labels.Stream(site.Stream), Shape: shape,
	}
	if site.Memory != alloc.UnknownMemory {
		row.Memory = site.Memory.String()
	}
	if site.DType.Bits() > 0 {
		row.DType = site.DType.String()
	}
	if !in.own && site.Kind == "" {
		row.Kind = "" // not known
	}
	return row
}

// forgetPast takes out what only a history tells.
func (in *source) forgetPast(u *export.Usage, dumps []*snapshot.Dump) {
	for _, d := range dumps {
		if len(tables.OfHistory(&d.History).Events) > 0 {
			return
		}
	}
	for _, rows := range [][]export.Row{u.Rows, u.Host} {
		for i := range rows {
			rows[i].Peak, rows[i].Total = mem.Tally{}, mem.Tally{}
		}
	}
}

func (in *source) deviceName(s *snapshot.Snapshot) string {
	if in.own {
		return export.Device(s)
	}
	return fmt.Sprintf("%s:%d", in.device, s.Ordinal)
}
