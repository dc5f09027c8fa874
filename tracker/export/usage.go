package export

import (
	"time"

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

// FromSnapshot returns the snapshot's memory by call stack.
func FromSnapshot(s *tracker.Snapshot) *Usage {
	u := &Usage{Time: s.Time, Origin: s.Origin}
	device := Device(s)
	for site := range s.Sites() {
		row := Row{
			Stack: site.Stack, Site: site.Site, Kind: site.Kind.String(), Section: site.Section, Device: device,
			Live: site.Live, Peak: site.Peak, Total: site.Total,
		}
		if site.DType.Valid() { // it is not, and the shape unknown, for shapes long gone
			row.DType, row.Shape = site.DType.String(), site.Shape.String()
		}
		u.Rows = append(u.Rows, row)
	}
	return u
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
