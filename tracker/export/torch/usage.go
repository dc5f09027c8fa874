package torch

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/labels"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// usage sums the devices up by call stack, kind, section and stream. Buffers that only
// differ in size, of which PyTorch knows no more, are one row.
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
	}
	rows := make(map[key]int)
	for _, d := range dumps {
		if d.Snapshot.Time.After(u.Time) {
			u.Time = d.Snapshot.Time
		}
		for site := range d.Snapshot.CallSites() {
			k := key{lines.Identify(site.Stack), site.CallSite, d.Snapshot.Ordinal, site.Kind, 0, site.Memory, "", site.Section, site.Stream}
			if site.DType.Bits() > 0 {
				k.dtype, k.shape = site.DType, site.Shape.String()
			}
			i, ok := rows[k]
			if !ok {
				i = len(u.Rows)
				rows[k] = i
				u.Rows = append(u.Rows, export.Row{
					Stack: site.Stack, CallSite: site.CallSite, Kind: site.Kind.String(), Section: site.Section, Device: in.deviceName(d.Snapshot), Stream: labels.Stream(site.Stream), Shape: k.shape,
				})
				if site.Memory != alloc.UnknownMemory {
					u.Rows[i].Memory = site.Memory.String()
				}
				if site.DType.Bits() > 0 {
					u.Rows[i].DType = site.DType.String()
				}
				if !in.own && site.Kind == mem.Unspecified {
					u.Rows[i].Kind = "" // not known
				}
			}
			row := &u.Rows[i]
			row.Live, row.Peak, row.Total = row.Live.Add(site.Live), row.Peak.Add(site.Peak), row.Total.Add(site.Total)
		}
	}
	in.forgetPast(u, dumps)
	return u
}

// forgetPast takes out what only a history tells.
func (in *source) forgetPast(u *export.Usage, dumps []*snapshot.Dump) {
	for _, d := range dumps {
		if d.History.Len() > 0 {
			return
		}
	}
	for i := range u.Rows {
		u.Rows[i].Peak, u.Rows[i].Total = mem.Tally{}, mem.Tally{}
	}
}

func (in *source) deviceName(s *snapshot.Snapshot) string {
	if in.own {
		return export.Device(s)
	}
	return fmt.Sprintf("%s:%d", in.device, s.Ordinal)
}
