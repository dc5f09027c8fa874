package export

import (
	"cmp"
	"math/bits"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"unique"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// rowKey is what rows with one key have in common. A line of code gets its name only when all
// processes are known.
type rowKey struct {
	isSite bool
	site   mem.Frame
	name   string
}

// Summary sums the usage up by one property, for a Compare by the same property. It has no rows, so
// it is small: keep this when there are many processes.
func (u *Usage) Summary(by, of string) *Usage { return u.summary(by, of, false) }

// HostSummary is Summary for the host's memory.
func (u *Usage) HostSummary(by, of string) *Usage { return u.summary(by, of, true) }

func (u *Usage) summary(by, of string, host bool) *Usage {
	if by == "path" { // which needs the stacks
		u.Fill()
	}
	index := make(map[rowKey]int)
	var keys []unique.Handle[rowKey]
	var sums []mem.Tally
	for row := range u.Each(host) {
		t := row.tally(of)
		if t.IsZero() {
			continue
		}
		key := row.key(by, t)
		at, known := index[key]
		if !known {
			at = len(keys)
			index[key] = at
			keys, sums = append(keys, unique.Make(key)), append(sums, mem.Tally{})
		}
		sums[at] = sums[at].Add(t)
	}
	out := &Usage{Name: u.Name, Device: u.Device, Time: u.Time, Origin: u.Origin}
	out.keys, out.sums = shared(keys, sums)
	return out
}

// keyList is shared by summaries, since the ranks of a run have the same lines.
type keyList struct {
	keys  []unique.Handle[rowKey]
	index map[unique.Handle[rowKey]]int
}

// lastKeys are the keys of the latest summary that had keys of its own.
var lastKeys atomic.Pointer[keyList]

// shared returns the sums by the keys of an earlier summary, if that has them and few others, whose sums are zero then.
func shared(keys []unique.Handle[rowKey], sums []mem.Tally) ([]unique.Handle[rowKey], []mem.Tally) {
	if last := lastKeys.Load(); last != nil && len(last.keys) <= len(keys)+len(keys)/8 {
		if its, ok := last.order(keys, sums); ok {
			return last.keys, its
		}
	}
	list := &keyList{slices.Clone(keys), make(map[unique.Handle[rowKey]]int, len(keys))}
	for i, key := range keys {
		list.index[key] = i
	}
	lastKeys.Store(list)
	return list.keys, append([]mem.Tally{}, sums...)
}

// order puts sums in the order of the list. It reports whether the list has all keys.
func (l *keyList) order(keys []unique.Handle[rowKey], sums []mem.Tally) ([]mem.Tally, bool) {
	out := make([]mem.Tally, len(l.keys))
	for i, key := range keys {
		at, ok := l.index[key]
		if !ok {
			return nil, false
		}
		out[at] = sums[i]
	}
	return out, true
}

// summaries returns the summary of each process; nil counts as an empty usage.
func summaries(run []*Usage, by, of string) []*Usage {
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
func (r *Row) key(by string, counted mem.Tally) rowKey {
	if by == "size" {
		return rowKey{name: sizeName(counted)}
	}
	if by == "line" || !slices.Contains(Bys(), by) {
		return rowKey{isSite: true, site: r.CallSite}
	}
	return rowKey{name: r.property(by)}
}

// property returns a property of the row as a word.
func (r *Row) property(by string) string {
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

func (r *Row) tally(of string) mem.Tally {
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
	return sizeNames()[bits.Len64(uint64(t.Bytes)/uint64(t.Count))]
}

// sizeNames are the names of sizes by their number of bits.
var sizeNames = sync.OnceValue(func() []string {
	names := make([]string, 64)
	names[0] = "0 B"
	for i := 1; i < len(names)-1; i++ {
		names[i] = (alloc.Bytes(1) << (i - 1)).String() + " to " + (alloc.Bytes(1) << i).String()
	}
	names[63] = (alloc.Bytes(1) << 62).String() + " and more"
	return names
})

// sizeOf is the place of a name among the sizes; -1 is unknown.
func sizeOf(name string) int { return slices.Index(sizeNames(), name) }
