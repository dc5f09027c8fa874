package plain

// slab is how many things are kept together.
const slab = 4096

// slabs keeps things of one type, many in a Go object. They do not move.
type slabs[T any] struct {
	all [][]T
}

func (s *slabs[T]) at(i int64) *T { return &s.all[i/slab][i%slab] }

// len returns how many elements were added. They must have been added one by one.
func (s *slabs[T]) len() uint64 {
	if len(s.all) == 0 {
		return 0
	}
	return uint64((len(s.all)-1)*slab + len(s.all[len(s.all)-1]))
}

func (s *slabs[T]) add() int64 { return s.addRun(1) }

// addRun adds n things, at most slab, one after the other, and returns the place of the first.
func (s *slabs[T]) addRun(n int) int64 {
	last := len(s.all) - 1
	if last < 0 || len(s.all[last])+n > slab {
		s.all = append(s.all, make([]T, 0, slab))
		last++
	}
	at := len(s.all[last])
	s.all[last] = s.all[last][:at+n]
	return int64(last*slab + at)
}
