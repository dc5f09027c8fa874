package export

import (
	"cmp"
	"path"
	"slices"
	"unique"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// sum is what one key of a summary holds. Summaries share their keys, so that those of thousands of processes are small.
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

// Summary returns the usage summed up by one property, for Compare by the same. It has no rows, and so takes a small part of the
// memory: of many processes, it is what to keep of each.
func (u *Usage) Summary(by By, of Of) *Usage {
	sums := make(map[rowKey]mem.Tally)
	for i := range u.Rows {
		if t := u.Rows[i].tally(of); !t.IsZero() {
			key := u.Rows[i].key(by)
			sums[key] = sums[key].Add(t)
		}
	}
	out := &Usage{Name: u.Name, Device: u.Device, Time: u.Time, Origin: u.Origin, sums: make([]sum, 0, len(sums))}
	for key, tally := range sums {
		out.sums = append(out.sums, sum{unique.Make(key), tally})
	}
	return out
}

// summaries are those of many processes; one that is nil has nothing.
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

func (r *Row) key(by By) rowKey {
	if by == "site" || !slices.Contains(Bys(), by) {
		return rowKey{isSite: true, site: r.Site}
	}
	return rowKey{name: r.property(by)}
}

// property is a property of the row, as a word.
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
	case "function":
		if r.Site.Function == "" {
			return "unknown"
		}
		return path.Base(r.Site.Function)
	}
	return r.Stack[max(0, slices.Index(r.Stack, r.Site)):].Path().String()
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
