package estimate

import "sync"

// scratch is memory that Model needs while it runs and uses again the next time:
// asked for anew at each call it would be most of what a call costs.
type scratch struct {
	modules  []module
	params   []ownedParam
	index    map[string]int
	storages []storage
	ops      []op
	refs     []int32
	loads    []load
	each     []ofModule
	numbers  []int32
	events   [][]event   // of timelines
	lent     []*timeline // which have them
}

// lend gives a timeline memory for its events.
func (s *scratch) lend(l *timeline) {
	if last := len(s.events) - 1; last >= 0 {
		l.events, s.events = s.events[last][:0], s.events[:last]
	}
	s.lent = append(s.lent, l)
}

// counts returns n zeros, which live until the scratch is released.
func (s *scratch) counts(n int) []int32 {
	if cap(s.numbers)-len(s.numbers) < n {
		s.numbers = make([]int32, 0, max(2*cap(s.numbers), n))
	}
	begin := len(s.numbers)
	s.numbers = s.numbers[:begin+n]
	zeros := s.numbers[begin : begin+n : begin+n]
	clear(zeros)
	return zeros
}

var scratches = sync.Pool{New: func() any { return &scratch{index: make(map[string]int)} }}

// keepScratch is the number of modules beyond which the memory is let go, so that one
// huge model does not hold it for ever.
const keepScratch = 1 << 14

// maxLent is the number of timelines beyond which the memory is let go: a pipeline of many stages
// has some for each.
const maxLent = 8

// release takes the memory back from a declaration and a tape, either of which may
// be nil, and forgets what they wrote there.
func (s *scratch) release(d *Declaration, t *Tape) {
	if d != nil {
		s.modules, s.params = d.modules, d.params
	}
	if t != nil {
		s.storages, s.ops, s.refs, s.numbers = t.storages, t.ops, t.refs, s.numbers[:0]
	}
	for _, l := range s.lent {
		s.events = append(s.events, l.events)
	}
	clear(s.lent)
	s.lent = s.lent[:0]
	if cap(s.modules) > keepScratch || len(s.events) > maxLent {
		return
	}
	clear(s.modules)
	clear(s.params)
	clear(s.index)
	scratches.Put(s)
}
