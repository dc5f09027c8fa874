//go:build gc && (amd64 || arm64) && !nofp

package callstack

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// route goes down a random tree of calls, some of them inlined, and then calls last.
type route struct {
	random *rand.Rand
	last   func()
}

//go:noinline
func (r *route) down(left int) {
	if left == 0 {
		r.last()
		return
	}
	switch r.random.IntN(6) {
	case 0:
		r.down(left - 1)
	case 1:
		r.inlined(left - 1)
	case 2:
		r.inlinedTwice(left - 1)
	case 3:
		func() { r.inlined(left - 1) }()
	case 4:
		defer r.down(left - 1)
	default:
		var way interface{ down(left int) } = r
		way.down(left - 1)
	}
}

func (r *route) inlined(left int) { r.down(left) }

func (r *route) inlinedTwice(left int) { r.inlined(left) }

// TestStacksThatFollowFromOthers compares stacks that were never seen with what runtime.Callers says: most follow from those
// before, at any depth, and also where the first frame that is kept is inlined.
func TestStacksThatFollowFromOthers(t *testing.T) {
	for _, depth := range []int{8, DefaultDepth, MaxDepth} {
		for skip := range 3 {
			table := NewTable(Config{Depth: depth})
			followed := 0
			r := &route{random: rand.New(rand.NewPCG(1, uint64(depth)))}
			r.last = func() {
				var want, callers, walked, stack [MaxDepth]uintptr
				m, _ := walk(&walked[0], nil, len(walked), 0)
				if k, ok := table.symbols.expand(walked[:m], m < len(walked), stack[:depth]); ok {
					followed++
					require.Equal(t, callers[:runtime.Callers(2, callers[:depth])], stack[:k])
				}
				n := runtime.Callers(1+skip, want[:depth])
				id := table.Capture(skip)
				require.Len(t, table.PCs(id), n)
				same := max(0, 1-skip) // the lines of the two calls differ
				require.Equal(t, want[same:n], table.PCs(id)[same:])
			}
			for range 2000 {
				r.down(1 + r.random.IntN(20))
			}
			assert.Greater(t, followed, 1500, "depth %d skip %d", depth, skip)
		}
	}
}

// TestNoRunOfWhatAWalkMisses: an address is not believed whose next frame the walk has missed, or that has more frames than the
// stack shows.
func TestNoRunOfWhatAWalkMisses(t *testing.T) {
	walked, stack := stackHere()

	known := func(walked, stack []uintptr, whole bool) (n int) {
		s := new(symbols)
		require.True(t, s.determines(walked, stack))
		s.learnRuns(walked, stack, whole)
		for _, pc := range walked {
			if s.at(pc).run.Load() != nil {
				n++
			}
		}
		return n
	}
	all := known(walked, stack, true)
	assert.Equal(t, all-1, known(walked, stack, false), "the last one may go on")
	assert.Less(t, known(walked, stack[:len(stack)-1], true), all, "it is cut")
	with := append([]uintptr{walked[0], 1}, walked[1:]...)
	assert.Equal(t, all+1, known(with, stack, true), "with a wrapper")
	s := new(symbols)
	s.learnRuns(walked, stack, true)
	for n := range walked {
		_, ok := s.expand(walked[:n], true, make([]uintptr, MaxDepth))
		assert.Equal(t, n > 0, ok)
		_, ok = s.expand(walked[:n], false, make([]uintptr, MaxDepth))
		assert.False(t, ok, "there is more")
	}
	_, ok := s.expand(append(walked[:1:1], 1), true, make([]uintptr, MaxDepth))
	assert.False(t, ok, "an address that is not known")
}
