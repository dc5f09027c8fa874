package export

import (
	"cmp"
	"math/bits"
	"path"
	"slices"
	"unique"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// sum is the memory of one key of a summary. Summaries share their keys, so that thousands of them
// stay small.
type sum struct {
	key   unique.Handle[rowKey]
	tally mem.Tally
}

// rowKey is what rows are summed up by. A line of code gets its name only when all processes are known.
type rowKey struct {
	isSite bool
	site   mem.Frame
	name   string
}

// Summary sums the usage up by one property, for a Compare by the same property. It has no rows, so
// it is small: keep this when there are many processes.
func (u *Usage) Summary(by By, of Of) *Usage {
	sums := make(map[rowKey]mem.Tally)
	for i := range u.Rows {
		if t := u.Rows[i].tally(of); !t.IsZero() {
			key := u.Rows[i].key(by, t)
			sums[key] = sums[key].Add(t)
		}
	}
	out := &Usage{Name: u.Name, Device: u.Device, Time: u.Time, Origin: u.Origin, sums: make([]sum, 0, len(sums))}
	for key, tally := range sums {
		out.sums = append(out.sums, sum{unique.Make(key), tally})
	}
	return out
}

// summaries returns the summary of each process; nil counts as an empty usage.
func summaries(run []*Usage, by By, of Of) []*Usage {
	out := make([]*Usage, len(run))
	for i, u := range run {
		switch {
		case u == nil:
			out[i] = new(Usage)
		case u.sums != nil:
			out[i] = u
		default:
			out[i] = u.Summary(by, of)
		}
	}
	return out
}

// key returns the key under which the row is summed up, given the buffers that count.
func (r *Row) key(by By, counted mem.Tally) rowKey {
	if by == "size" {
		return rowKey{name: sizeName(counted)}
	}
	if by == "line" || !slices.Contains(Bys(), by) {
		return rowKey{isSite: true, site: r.CallSite}
	}
	return rowKey{name: r.property(by)}
}

// property returns a property of the row as a word.
func (r *Row) property(by By) string {
	switch by {
	case "shape":
		if r.Shape == "" {
			return "unknown"
		}
		return r.Shape + " " + r.DType
	case "kind":
		return cmp.Or(r.Kind, "unknown")
	case "section":
		return cmp.Or(r.Section, "no section")
	case "device":
		return cmp.Or(r.Device, "unknown")
	case "memory":
		return cmp.Or(r.Memory, "unknown")
	case "stream":
		return cmp.Or(r.Stream, "unknown")
	case "label":
		return cmp.Or(r.Label, "no label")
	case "function":
		if r.CallSite.Function == "" {
			return "unknown"
		}
		return path.Base(r.CallSite.Function)
	}
	return r.Stack[max(0, slices.Index(r.Stack, r.CallSite)):].Path().String()
}

func (r *Row) tally(of Of) mem.Tally {
	switch of {
	case "peak":
		return r.Peak
	case "total":
		return r.Total
	default:
		return r.Live
	}
}

// sizeName names the powers of two around the size of each buffer: "1.0 MiB to 2.0 MiB". In
// snapshots and dumps all buffers of a row have one size; in other formats it is their mean.
func sizeName(t mem.Tally) string {
	if t.Count <= 0 || t.Bytes < 0 {
		return "unknown"
	}
	return sizeNames[bits.Len64(uint64(t.Bytes)/uint64(t.Count))]
}

// sizeNames are the names of sizes by their number of bits.
var sizeNames = func() (names [64]string) {
	names[0] = "0 B"
	for i := 1; i < len(names)-1; i++ {
		names[i] = (alloc.Bytes(1) << (i - 1)).String() + " to " + (alloc.Bytes(1) << i).String()
	}
	names[63] = (alloc.Bytes(1) << 62).String() + " and more"
	return names
}()

// sizeOf is the place of a name among the sizes; -1 is unknown.
func sizeOf(name string) int { return slices.Index(sizeNames[:], name) }
