package torch

import (
	"fmt"
	"iter"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/labels"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// naming says how the rows of a file's usage are named. It keeps nothing else of the file.
type naming struct {
	own    bool   // the file is one of Write
	device string // the name of all its devices
	origin snapshot.Origin
}

func (in *source) named() naming { return naming{in.own, in.device, in.origin} }

// usage returns the usage of the devices, whose rows are made when they are needed.
func (n naming) usage(dumps []*snapshot.Dump) *export.Usage {
	u := export.Usage{Origin: n.origin}
	for _, d := range dumps {
		if d.Snapshot.Time.After(u.Time) {
			u.Time = d.Snapshot.Time
		}
	}
	return export.Defer(u, export.Deferred{
		Each: func(host bool) iter.Seq[*export.Row] { return n.each(dumps, host) },
		Rows: func() (device, host []export.Row) { return n.rows(dumps) },
	})
}

// each yields a row without a stack for each call site of the tables.
func (n naming) each(dumps []*snapshot.Dump, host bool) iter.Seq[*export.Row] {
	return func(yield func(*export.Row) bool) {
		past := haveEvents(dumps)
		for _, d := range dumps {
			for site := range d.Snapshot.Sums() {
				shape := ""
				if site.DType.Bits() > 0 {
					shape = site.Shape.String()
				}
				row := n.row(d.Snapshot, site, shape)
				row.Totals = site.Totals
				if !past {
					row.Peak, row.Total = mem.Tally{}, mem.Tally{}
				}
				if labels.OnHost(row.Memory) == host && !yield(row) {
					return
				}
			}
		}
	}
}

// rows sums the devices up by call stack, kind, section, stream and the size of each buffer.
func (n naming) rows(dumps []*snapshot.Dump) (device, host []export.Row) {
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
				row = n.row(d.Snapshot, site, k.shape)
				rows[k], order = row, append(order, row)
			}
			row.Live, row.Peak, row.Total = row.Live.Add(site.Live), row.Peak.Add(site.Peak), row.Total.Add(site.Total)
		}
	}
	past := haveEvents(dumps)
	for _, row := range order {
		if !past {
			row.Peak, row.Total = mem.Tally{}, mem.Tally{}
		}
		if labels.OnHost(row.Memory) {
			host = append(host, *row)
		} else {
			device = append(device, *row)
		}
	}
	return device, host
}

// row returns a call stack's row, without its amounts.
func (n naming) row(s *snapshot.Snapshot, site snapshot.CallSiteStats, shape string) *export.Row {
	row := &export.Row{
		Stack: site.Stack, CallSite: site.CallSite, Kind: site.Kind.String(), Section: site.Section, Device: n.deviceName(s), Stream: labels.Stream(site.Stream), Shape: shape,
	}
	if site.Memory != alloc.UnknownMemory {
		row.Memory = site.Memory.String()
	}
	if site.DType.Bits() > 0 {
		row.DType = site.DType.String()
	}
	if !n.own && site.Kind == "" {
		row.Kind = "" // not known
	}
	return row
}

// haveEvents reports whether there is a history, without which nothing is known of the past.
func haveEvents(dumps []*snapshot.Dump) bool {
	for _, d := range dumps {
		if len(tables.OfHistory(&d.History).Events) > 0 {
			return true
		}
	}
	return false
}

func (n naming) deviceName(s *snapshot.Snapshot) string {
	if n.own {
		return export.Device(s)
	}
	return fmt.Sprintf("%s:%d", n.device, s.Ordinal)
}
