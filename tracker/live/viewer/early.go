package viewer

import (
	"cmp"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// earlyJSON is the live table of a file that is still read.
type earlyJSON struct {
	Moment   string      `json:"moment"`
	Bytes    int64       `json:"bytes"`
	Count    int64       `json:"count"`
	Reserved int64       `json:"reserved_bytes"`
	Lines    []earlyLine `json:"lines"`
	More     struct {
		Lines int   `json:"lines"`
		Bytes int64 `json:"bytes"`
		Count int64 `json:"count"`
	} `json:"more"`
}

type earlyLine struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Bytes int64  `json:"bytes"`
	Count int64  `json:"count"`
}

// newEarly sums up what is live by line and kind.
func newEarly(s *snapshot.Snapshot) *earlyJSON {
	const most = 200
	type key struct {
		line mem.Frame
		kind mem.Kind
	}
	out := &earlyJSON{Moment: "end", Bytes: int64(s.Live.Bytes), Count: s.Live.Count, Reserved: int64(s.Reserved), Lines: []earlyLine{}}
	sums := make(map[key]mem.Tally)
	for site := range s.CallSites() {
		if !site.Memory.OnHost() && !site.Live.IsZero() {
			k := key{site.CallSite, site.Kind}
			sums[k] = sums[k].Add(site.Live)
		}
	}
	for k, t := range sums {
		out.Lines = append(out.Lines, earlyLine{printable(k.line.String()), printable(k.kind.String()), int64(t.Bytes), t.Count})
	}
	slices.SortFunc(out.Lines, func(a, b earlyLine) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	for _, l := range out.Lines[min(most, len(out.Lines)):] {
		out.More.Lines++
		out.More.Bytes += l.Bytes
		out.More.Count += l.Count
	}
	out.Lines = out.Lines[:min(most, len(out.Lines))]
	return out
}
