package tape

import (
	"sync"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/timeline"
)

// Scratch is memory that Model needs while it runs. The next call uses it again, since allocating
// it anew would be most of a call's cost.
type Scratch struct {
	modules  []module
	params   []ownedParam
	index    map[string]int
	Storages []Storage
	Ops      []Recorded
	Refs     []int32
	Rows     []Row
	weights  any // memory of Weigh: a *sums
	numbers  []int32
	events   [][]timeline.Event   // memory for events of timelines
	lent     []*timeline.Timeline // the timelines that have that memory now
}

// Lend gives a timeline memory for its events, until Release.
func (s *Scratch) Lend(l *timeline.Timeline) {
	if last := len(s.events) - 1; last >= 0 {
		l.Events, s.events = s.events[last][:0], s.events[:last]
	}
	s.lent = append(s.lent, l)
}

// Counts returns n zeros, valid until Release.
func (s *Scratch) Counts(n int) []int32 {
	if cap(s.numbers)-len(s.numbers) < n {
		s.numbers = make([]int32, 0, max(2*cap(s.numbers), n))
	}
	begin := len(s.numbers)
	s.numbers = s.numbers[:begin+n]
	zeros := s.numbers[begin : begin+n : begin+n]
	clear(zeros)
	return zeros
}

var Scratches = sync.Pool{New: func() any { return &Scratch{index: make(map[string]int)} }}

// keepScratch is the number of modules beyond which the memory is not kept, so that one huge model
// does not hold it for ever.
const keepScratch = 1 << 14

// maxLent is the number of timelines beyond which the memory is not kept: a pipeline has some for
// each stage.
const maxLent = 8

// Release recycles the memory that a declaration and a tape use, and clears it. Either may be
// nil.
func (s *Scratch) Release(d *Declaration, t *Tape) {
	if d != nil {
		s.modules, s.params = d.Modules, d.params
	}
	if t != nil {
		s.Storages, s.Ops, s.Refs, s.numbers = t.Storages, t.Ops, t.Refs, s.numbers[:0]
		s.Rows = t.Rows
	}
	for _, l := range s.lent {
		s.events = append(s.events, l.Events)
	}
	clear(s.lent)
	s.lent = s.lent[:0]
	if cap(s.modules) > keepScratch || len(s.events) > maxLent {
		return
	}
	clear(s.modules)
	clear(s.params)
	clear(s.Rows)
	clear(s.index)
	Scratches.Put(s)
}
