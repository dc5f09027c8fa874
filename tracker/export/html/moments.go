package html

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/timeline"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
)

// moment is an instant that the page can show: what was live then by row, and the segments.
type moment struct {
	names []string // such as "the peak"; most moments have none
	at    int      // the place on the chart; -1 before it
	next  uint64   // the number of the event that comes next
	snapshot.Levels
	live     []mem.Tally // by row; shorter if later rows did not exist yet
	segments *segmentMap // nil if they are not known
}

// The bounds of the moments. Each moment costs a scan of all events and of its live buffers, of which a buffer takes some
// 25 times as long as an event. scanBudget limits all moments together to about a second.
const (
	fewMoments  = 20 // with so few moments, leaving out more does not make the page smaller
	manyMoments = 120
	scanBudget  = 20_000_000
	bufferCost  = 25
)

// moments collects what a page shows of the moments of a dump.
type moments struct {
	dump  *snapshot.Dump
	rows  []export.Row // what was ever live, by call stack and tensor, with Peak and Total
	index tables.Numbers[rowKey]
	known map[siteKey]int // indices found so far
	list  []moment
	shown int // the moment that the page opens at
}

// rowKey identifies a row.
type rowKey struct {
	stack                      lines.StackID
	kind, dtype, shape, memory string
}

// siteKey identifies a row in a snapshot. Numbers of stacks are valid either in the dump or in the
// states before it, so the key says which.
type siteKey struct {
	stack  tables.StackID
	tensor *tables.Tensor
	before bool
}

// newMoments collects the moments of a dump that opens at an event. Where the states before its snapshot are not known, there are the
// peak and the end.
func newMoments(r *snapshot.Dump, usage *export.Usage, t *timeline.Timeline, opens rewind.Moment) *moments {
	m := &moments{dump: r, index: make(tables.Numbers[rowKey]), known: make(map[siteKey]int)}
	for _, row := range slices.Concat(usage.Rows, usage.Host) {
		sum := &m.rows[m.row(row)]
		sum.Peak, sum.Total = sum.Peak.Add(row.Peak), sum.Total.Add(row.Total)
	}
	if t != nil {
		m.list = m.sample(t, opens)
		if m.collect() != nil {
			m.list = nil
		}
	}
	if len(m.list) == 0 {
		last := 0
		if t != nil {
			last = len(t.Seconds) - 1
		}
		m.list = []moment{{at: last, next: r.Snapshot.Events}}
		m.record(&m.list[0], r.Snapshot)
	}
	m.peak(t)
	m.name(t, opens)
	return m
}

// row returns the index of a row. A new row is added without its tallies.
func (m *moments) row(r export.Row) int {
	i, isNew := m.index.Of(rowKey{lines.Identify(r.Stack), r.Kind, r.DType, r.Shape, r.Memory})
	if isNew {
		r.Live, r.Peak, r.Total = mem.Tally{}, mem.Tally{}, mem.Tally{}
		m.rows = append(m.rows, r)
	}
	return i
}

// sample chooses among the points of the chart: all of a short history, otherwise its beginning and its end, the peak, the error
// that the page opens at and marks, and of each stretch between them the highest. Where a scan takes too long, only
// the end and the error are chosen.
func (m *moments) sample(t *timeline.Timeline, opens rewind.Moment) []moment {
	levels := make([]alloc.Bytes, len(t.Seconds))
	for _, layer := range t.Kinds {
		for i, b := range layer.Bytes {
			levels[i] += b
		}
	}
	cost := len(tables.OfHistory(&m.dump.History).Events) + bufferCost*int(m.dump.Snapshot.Peak.Count) + 1
	most := min(manyMoments, scanBudget/cost)
	last := len(levels) - 1
	wanted := map[int]bool{last: true}
	if i := slices.Index(t.Events, opens.Event+1); opens.At == "oom" && i >= 0 {
		wanted[i] = true
	}
	if most > 3 {
		wanted[0], wanted[highest(levels, 0, last+1)] = true, true
	}
	for _, mark := range t.Marks[max(0, len(t.Marks)-most/3):] {
		i, _ := slices.BinarySearch(t.Seconds, mark.Seconds)
		wanted[min(i, last)] = true
	}
	for left, i := most-len(wanted), 0; i < left; i++ {
		from, to := i*len(levels)/left, (i+1)*len(levels)/left
		if from < to {
			wanted[highest(levels, from, to)] = true
		}
	}
	var list []moment
	for i := range levels {
		if same := len(list) - 1; wanted[i] && same >= 0 && list[same].next == t.Events[i] {
			list[same].at = i // nothing happened between them
		} else if wanted[i] {
			list = append(list, moment{at: i, next: t.Events[i]})
		}
	}
	return list
}

// highest returns the first of the highest levels of a range.
func highest(levels []alloc.Bytes, from, to int) int {
	at := from
	for i := from; i < to; i++ {
		if levels[i] > levels[at] {
			at = i
		}
	}
	return at
}

// collect records the state at each moment.
func (m *moments) collect() error {
	events := make([]uint64, len(m.list))
	for i := range m.list {
		events[i] = m.list[i].next
	}
	at := len(m.list)
	return rewind.Each(m.dump, events, func(s *snapshot.Snapshot) {
		at--
		m.record(&m.list[at], s)
	})
}

// record adds a state to its moment.
func (m *moments) record(to *moment, s *snapshot.Snapshot) {
	to.Levels = s.Levels
	lists := tables.Of(&s.Tables)
	for i := range lists.Sites {
		site := &lists.Sites[i]
		if site.Live == 0 {
			continue
		}
		row := m.rowOf(s, site)
		for len(to.live) <= row {
			to.live = append(to.live, mem.Tally{})
		}
		to.live[row] = to.live[row].Add(site.Tensor.Tally(site.Live))
	}
	to.segments = newSegmentMap(s)
}

func (m *moments) rowOf(s *snapshot.Snapshot, site *tables.SiteEntry) int {
	key := siteKey{site.Stack, site.Tensor, s != m.dump.Snapshot}
	row, ok := m.known[key]
	if !ok {
		x, stacks := site.Tensor, tables.Of(&s.Tables).Stacks
		r := export.Row{Stack: stacks.Stack(site.Stack), CallSite: stacks.Site(site.Stack), Kind: x.Kind.String()}
		if x.Memory != alloc.UnknownMemory {
			r.Memory = x.Memory.String()
		}
		if x.DType.Bits() > 0 {
			r.DType, r.Shape = x.DType.String(), x.Shape.String()
		}
		row = m.row(r)
		m.known[key] = row
	}
	return row
}

// peak adds the peak, from the tallies of the rows, if it is not among the moments: it was before
// the history, or reading it takes too long.
func (m *moments) peak(t *timeline.Timeline) {
	peak := m.dump.Snapshot.Peak
	if peak.IsZero() || slices.ContainsFunc(m.list, func(x moment) bool { return x.Live.Bytes >= peak.Bytes }) {
		return
	}
	add := moment{at: -1, Levels: snapshot.Levels{Live: peak, Allocated: -1, Reserved: -1}}
	if t != nil && t.Peak != nil {
		add.at, _ = slices.BinarySearch(t.Seconds, t.Peak.Seconds)
		add.next = t.Events[add.at]
	}
	for _, row := range m.rows {
		add.live = append(add.live, row.Peak)
	}
	if slices.ContainsFunc(add.live, func(t mem.Tally) bool { return !t.IsZero() }) {
		i := slices.IndexFunc(m.list, func(x moment) bool { return x.at >= add.at })
		m.list = slices.Insert(m.list, i, add)
	}
}

// name names the peak, the error and the end, and chooses the moment to open at.
func (m *moments) name(t *timeline.Timeline, opens rewind.Moment) {
	last := len(m.list) - 1
	m.shown = last
	if opens.At == "oom" {
		for _, next := range []uint64{opens.Event, opens.Event + 1} { // the event changed nothing
			if i := slices.IndexFunc(m.list, func(x moment) bool { return x.next == next }); i >= 0 {
				m.shown = i
			}
		}
		m.list[m.shown].names = append(m.list[m.shown].names, "the error")
	}
	peak := 0
	for i, x := range m.list {
		if x.Live.Bytes > m.list[peak].Live.Bytes {
			peak = i
		}
	}
	if len(m.list) == 1 && t == nil {
		m.list[0].names = []string{opens.String()}
		return
	}
	m.list[peak].names = append(m.list[peak].names, "the peak")
	m.list[last].names = append(m.list[last].names, "the end")
}

// thin removes moments without a name until about most are left. shown is the index of the moment
// shown first.
func (m *moments) thin(most int) (list []moment, shown int) {
	for i, x := range m.list {
		if i == m.shown {
			shown = len(list)
		}
		if len(m.list) <= most || len(x.names) > 0 || i == m.shown || i*most/len(m.list) != (i+1)*most/len(m.list) {
			list = append(list, x)
		}
	}
	return list, shown
}

// ofKinds returns the bytes of each kind in the device's memory.
func (x *moment) ofKinds(rows []export.Row, kinds []string) []alloc.Bytes {
	sums := make([]alloc.Bytes, len(kinds))
	for row, t := range x.live {
		if i := slices.Index(kinds, rows[row].Kind); i >= 0 && !onHost(&rows[row]) {
			sums[i] += t.Bytes
		}
	}
	return sums
}

// bytes sums up rows.
func (x *moment) bytes(rows []int) (sum alloc.Bytes) {
	for _, row := range rows {
		if row < len(x.live) {
			sum += x.live[row].Bytes
		}
	}
	return sum
}
