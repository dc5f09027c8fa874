package export

import (
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// Usage is the memory of one process by call stack: what every format that can
// be read holds. Values that a format lacks are empty or zero.
type Usage struct {
	Name   string // where it comes from, such as a file's name
	Time   time.Time
	Origin tracker.Origin
	Rows   []Row
}

// rows iterates over the rows; of a nil Usage there are none.
func (u *Usage) rows(yield func(*Row) bool) {
	if u == nil {
		return
	}
	for i := range u.Rows {
		if !yield(&u.Rows[i]) {
			return
		}
	}
}

// Row is what one call stack holds of one kind, shape, dtype and section. The
// words are those of the source: a snapshot of PyTorch has kinds that package
// tracker does not know.
type Row struct {
	Stack   tracker.Stack // innermost first; shared: do not write
	Site    tracker.Frame // the line of the user's code in Stack
	Kind    string
	DType   string
	Shape   string
	Section string
	Device  string

	Live  tracker.Tally // now
	Peak  tracker.Tally // at the moment of most bytes of all
	Total tracker.Tally // ever
}

// FromSnapshot returns the snapshot's memory by call stack. Sections are known
// of live buffers only, so Peak and Total stand in the rows without one, and so
// does all of a light snapshot.
func FromSnapshot(s *tracker.Snapshot) *Usage {
	b := usageBuilder{usage: &Usage{Time: s.Time, Origin: s.Origin}, rows: make(map[rowKey]int), device: Device(s)}
	single := false
	for a := range s.Allocations() {
		single = true
		row := b.row(a.Stack, a.Site, a.Kind, a.DType, a.Shape, a.Section)
		row.Live = row.Live.Add(tracker.Tally{Count: 1, Bytes: a.Requested})
	}
	for site := range s.Sites() {
		row := b.row(site.Stack, site.Site, site.Kind, site.DType, site.Shape, "")
		row.Peak = row.Peak.Add(site.Peak)
		row.Total = row.Total.Add(site.Total)
		if !single {
			row.Live = row.Live.Add(site.Live)
		}
	}
	return b.usage
}

// usageBuilder finds the row of a buffer without looking at the words in its
// stack and shape: those of one tracker are shared.
type usageBuilder struct {
	usage  *Usage
	rows   map[rowKey]int
	device string
}

type rowKey struct {
	stack   StackID
	dims    *int
	rank    int
	kind    tracker.Kind
	dtype   alloc.DType
	section string
}

// row returns the row, which stays where it is until the next call.
func (b *usageBuilder) row(stack tracker.Stack, site tracker.Frame, kind tracker.Kind, dtype alloc.DType, shape alloc.Shape, section string) *Row {
	key := rowKey{stack: IdentifyStack(stack), rank: len(shape), kind: kind, dtype: dtype, section: section}
	if len(shape) > 0 {
		key.dims = &shape[0]
	}
	i, ok := b.rows[key]
	if !ok {
		i = len(b.usage.Rows)
		b.rows[key] = i
		row := Row{Stack: stack, Site: site, Kind: kind.String(), Section: section, Device: b.device}
		if dtype.Valid() { // it is not, and the shape unknown, for shapes long gone
			row.DType, row.Shape = dtype.String(), shape.String()
		}
		b.usage.Rows = append(b.usage.Rows, row)
	}
	return &b.usage.Rows[i]
}

// StackID tells stacks apart that come from one tracker or one file, which
// share the frames of equal stacks. Its zero value is the empty stack's.
type StackID struct {
	first *tracker.Frame
	depth int
}

// IdentifyStack returns the stack's identity.
func IdentifyStack(s tracker.Stack) StackID {
	if len(s) == 0 {
		return StackID{}
	}
	return StackID{&s[0], len(s)}
}
