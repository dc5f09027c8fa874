package snapshot

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callsite"
	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/kinds"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Delta is a signed difference of two live tables: the groups that changed. Increases come first,
// then decreases; both are sorted by size, then by shape, dtype and kind. Equal programs give equal
// texts. A Delta is shared: do not write to it.
type Delta []Change

// Group is what buffers have in common that a report counts together.
type Group struct {
	Kind   mem.Kind     `json:"kind"`
	DType  alloc.DType  `json:"dtype,omitempty"` // not valid where it is not known
	Shape  alloc.Shape  `json:"shape"`           // shared: do not write
	Memory alloc.Memory `json:"memory,omitzero"`
}

// Change is the difference in one group.
type Change struct {
	Group
	mem.Tally
	// CallSites are the lines of code whose buffers were allocated or freed. Lines that changed in
	// the same direction as the group come first, sorted by size. Their tallies add up to the
	// change's.
	CallSites []mem.CallSiteTally `json:"call_sites"`
}

// Sum returns the change of all groups in device memory together.
func (d Delta) Sum() mem.Tally {
	var sum mem.Tally
	for _, c := range d {
		if !c.Memory.OnHost() {
			sum = sum.Add(c.Tally)
		}
	}
	return sum
}

// maxWidth is the width of a report's lines, in bytes. A line is longer only if a single name or
// shape is.
const maxWidth = 100

// String returns the table that a report shows, without a line break at its end. It is
// empty if nothing changed.
func (d Delta) String() string { return strings.TrimSuffix(string(d.Append(nil)), "\n") }

// Append appends the table that a report shows, with a line break at its end: a line of headings, then a line for each
// group that changed. A call site that does not fit in its line goes into the next one. It appends nothing if nothing changed.
func (d Delta) Append(b []byte) []byte {
	if len(d) == 0 {
		return b
	}
	w := d.widths(b)
	b = w.appendRow(b, ' ', headings)
	b = append(b, " | Allocated at\n"...)
	var site []byte
	for i := range d {
		c, from := &d[i], len(b)
		b = w.appendRow(b, c.sign(), c.cells)
		site = c.appendSite(site[:0])
		if len(b)-from+len(" | ")+len(site) <= maxWidth {
			b = append(b, " | "...)
		} else {
			b = append(bytes.TrimRight(b, " "), "\n    at "...)
		}
		b = append(append(b, site...), '\n')
	}
	return b
}

// String returns the change on one line, as in the table but without the spaces that align it: "+ |
// 8 * (512,) | 16.0 KiB | Parameter | float32 | main.go:82 main.load".
func (c Change) String() string {
	b := widths{}.appendRow(nil, c.sign(), c.cells)
	return string(c.appendSite(append(b, " | "...)))
}

// cells appends the text of a table's column to b.
type cells func(b []byte, column int) []byte

// widths are the widths of a table's columns, except the sign and the call site.
type widths [4]int

func headings(b []byte, column int) []byte {
	return append(b, [len(widths{})]string{"Count * Size", "Memory", "Kind", "Type"}[column]...)
}

// widths returns the widths that the table needs; an amount's is the widest that there is.
// What lies in b after its end is overwritten.
func (d Delta) widths(b []byte) widths {
	w := widths{1: len("1023.9 KiB")}
	for _, column := range []int{0, 2, 3} {
		w[column] = len(headings(b, column)) - len(b)
		for i := range d {
			w[column] = max(w[column], len(d[i].cells(b, column))-len(b))
		}
	}
	return w
}

// appendRow appends the sign and the cells, padded to their widths.
func (w widths) appendRow(b []byte, sign byte, row cells) []byte {
	b = append(b, sign)
	for column, width := range w {
		b = append(b, " | "...)
		from := len(b)
		b = text.Pad(row(b, column), from, width)
	}
	return b
}

func (c *Change) sign() byte {
	if c.Count < 0 {
		return '-'
	}
	return '+'
}

func (c *Change) cells(b []byte, column int) []byte {
	count, bytes := c.Count, c.Bytes
	if count < 0 {
		count, bytes = -count, -bytes
	}
	switch column {
	case 0:
		b = append(strconv.AppendInt(b, count, 10), " * "...)
		if c.DType == 0 {
			return append(b, "unknown"...)
		}
		return c.Shape.Append(b)
	case 1:
		return append(b, bytes.String()...)
	case 2:
		return append(b, c.Kind.String()...)
	}
	if c.DType == 0 {
		b = append(b, "unknown"...)
	} else {
		b = append(b, c.DType.String()...)
	}
	return appendMemory(b, c.Memory)
}

// appendGroup prints what buffers are on one line: "Parameter (512,) float32".
func appendGroup(b []byte, g *Group) []byte {
	b = append(append(b, g.Kind.String()...), ' ')
	if g.DType == 0 {
		b = append(b, "of unknown shape"...)
	} else {
		b = append(append(g.Shape.Append(b), ' '), g.DType.String()...)
	}
	return appendMemory(b, g.Memory)
}

// appendMemory appends the type of memory, unless it is plain device memory.
func appendMemory(b []byte, m alloc.Memory) []byte {
	if m == alloc.UnknownMemory || m == alloc.DeviceMemory {
		return b
	}
	b = append(append(b, ' '), m.String()...)
	if m.OnHost() {
		b = append(b, " host"...)
	}
	return b
}

// appendSite appends the line of code with most of the change, and how many others
// there are.
func (c *Change) appendSite(b []byte) []byte {
	if len(c.CallSites) == 0 {
		return append(b, "unknown"...)
	}
	from, site := len(b), &c.CallSites[0].Frame
	b = text.Printable(callsite.AppendLine(b, site.Function, site.File, site.Line), from)
	if others := len(c.CallSites) - 1; others > 0 {
		b = append(b, " and "...)
		b = strconv.AppendInt(b, int64(others), 10)
		b = append(b, " more"...)
	}
	return b
}

type deltaJSON struct {
	Schema  string   `json:"schema"`
	Version int      `json:"version"`
	Changes []Change `json:"changes"`
}

// MarshalJSON writes the changes in their order, with the schema and its version.
func (d Delta) MarshalJSON() ([]byte, error) {
	if d == nil {
		d = Delta{}
	}
	return json.Marshal(deltaJSON{jsonstream.DeltaSchema, jsonstream.DeltaVersion, d})
}

// UnmarshalJSON reads what MarshalJSON wrote. A change whose lines of code do
// not add up to it is an error.
func (d *Delta) UnmarshalJSON(text []byte) error {
	var in deltaJSON
	if err := jsonstream.Unmarshal(text, &in); err != nil {
		return err
	}
	if err := jsonstream.CheckSchema(in.Schema, in.Version, jsonstream.DeltaSchema, jsonstream.DeltaVersion); err != nil {
		return fmt.Errorf("read delta: %w", err)
	}
	for i, c := range in.Changes {
		if _, err := tables.ReadTensor(c.Shape, c.DType, c.Kind, c.Memory, 0); err != nil {
			return fmt.Errorf("read delta: change %d: %w", i, err)
		}
		var sum mem.Tally
		for _, site := range c.CallSites {
			sum = sum.Add(site.Tally)
		}
		if sum != c.Tally {
			return fmt.Errorf("read delta: change %d is %v, but its call sites add up to %v", i, c.Tally, sum)
		}
	}
	*d = nil
	if len(in.Changes) > 0 {
		*d = in.Changes
	}
	return nil
}

// DeltaBuilder adds up changes by group and call site, and returns the sum as a Delta: what changed over several marks, for
// example. The zero value is ready to use. It is for one goroutine at a time.
type DeltaBuilder struct {
	changes []Change
	index   map[string]int // by group
	key     []byte
	first   []mem.CallSiteTally // room for the first call site of each change
	sites   map[changedSite]int // the index of a call site in a change that has more than fewSites
}

// changedSite is a call site of the change with that index.
type changedSite struct {
	change int
	mem.Frame
}

// fewSites are found faster one by one than in a map.
const fewSites = 8

// Grow makes room for n more groups.
func (b *DeltaBuilder) Grow(n int) {
	if b.index == nil {
		b.index = make(map[string]int, n)
	}
	b.changes = slices.Grow(b.changes, n)
	b.first = make([]mem.CallSiteTally, n)
}

// Add adds t to the change of the group at the call site. It keeps the group's shape. Memory of an unknown type counts as
// device memory, so that a file of an earlier version can be compared.
func (b *DeltaBuilder) Add(g Group, site mem.Frame, t mem.Tally) {
	i := b.find(&g)
	c := &b.changes[i]
	c.Tally = c.Tally.Add(t)
	if at := b.site(i, &site); at >= 0 {
		c.CallSites[at].Tally = c.CallSites[at].Tally.Add(t)
		return
	}
	c.CallSites = append(c.CallSites, mem.CallSiteTally{Frame: site, Tally: t})
	switch n := len(c.CallSites); {
	case n == fewSites+1:
		if b.sites == nil {
			b.sites = make(map[changedSite]int)
		}
		for at, s := range c.CallSites {
			b.sites[changedSite{i, s.Frame}] = at
		}
	case n > fewSites:
		b.sites[changedSite{i, site}] = n - 1
	}
}

// find returns the index of the group's change, which it adds if there is none.
func (b *DeltaBuilder) find(g *Group) int {
	x := tables.Tensor{Kind: g.Kind, DType: g.DType, Shape: g.Shape, Memory: cmp.Or(g.Memory, alloc.DeviceMemory)}
	b.key = x.AppendKey(b.key[:0])
	i, ok := b.index[string(b.key)]
	if ok {
		return i
	}
	if b.index == nil {
		b.index = make(map[string]int)
	}
	i = len(b.changes)
	b.index[string(b.key)] = i
	b.changes = append(b.changes, Change{Group: *g})
	if len(b.first) > 0 {
		b.changes[i].CallSites, b.first = b.first[:0:1], b.first[1:]
	}
	return i
}

// site returns the index of a call site within a change; -1 if it has none.
func (b *DeltaBuilder) site(change int, site *mem.Frame) int {
	sites := b.changes[change].CallSites
	if len(sites) <= fewSites {
		return slices.IndexFunc(sites, func(s mem.CallSiteTally) bool { return s.Frame == *site })
	}
	if at, ok := b.sites[changedSite{change, *site}]; ok {
		return at
	}
	return -1
}

// String says how many groups were added.
func (b *DeltaBuilder) String() string { return fmt.Sprintf("changes of %d groups", len(b.changes)) }

// Delta returns the sum, without the groups and call sites whose sum is zero. The builder is empty afterwards.
func (b *DeltaBuilder) Delta() Delta {
	sums := slices.DeleteFunc(b.changes, func(c Change) bool { return c.Tally.IsZero() })
	*b = DeltaBuilder{}
	if len(sums) == 0 {
		return nil
	}
	changes := make(Delta, len(sums)) // lines of one group share a change: room for all of them would be kept
	copy(changes, sums)
	for i := range changes {
		c := &changes[i]
		c.CallSites = slices.DeleteFunc(c.CallSites, func(s mem.CallSiteTally) bool { return s.Tally.IsZero() })
		slices.SortFunc(c.CallSites, func(x, y mem.CallSiteTally) int {
			return cmp.Or(compareTally(c.Count < 0, x.Tally, y.Tally), tables.CompareFrames(x.Frame, y.Frame))
		})
	}
	slices.SortFunc(changes, func(x, y Change) int {
		return cmp.Or(
			compareTally(false, x.Tally, y.Tally),
			x.Group.compare(y.Group), cmp.Compare(x.Memory, y.Memory))
	})
	return changes
}

// compareTally orders growth before shrinkage, or after it if reversed; within each, the larger
// change comes first.
func compareTally(reversed bool, x, y mem.Tally) int {
	if grew, grewY := x.Count > 0, y.Count > 0; grew != grewY {
		if grew != reversed {
			return -1
		}
		return 1
	}
	if x.Count > 0 {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(y.Count, x.Count))
	}
	return cmp.Or(cmp.Compare(x.Bytes, y.Bytes), cmp.Compare(x.Count, y.Count))
}

// compare orders groups by shape, dtype and kind.
func (g Group) compare(h Group) int {
	return cmp.Or(slices.Compare(g.Shape, h.Shape), cmp.Compare(g.DType, h.DType), kinds.Compare(g.Kind, h.Kind))
}
