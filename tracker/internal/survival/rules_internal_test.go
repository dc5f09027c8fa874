package survival

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each rule has bounds. These tests are of the bounds themselves: what just meets a rule, and what just misses it.

// TestAFreedBufferCountsByItsAge: a line counts all ages, a call path those from Counted on, and both know the windows of
// a buffer's life if it lived for a window.
func TestAFreedBufferCountsByItsAge(t *testing.T) {
	const now = time.Hour
	for age, want := range map[time.Duration]struct{ path, grown bool }{
		0:                  {false, false},
		Counted - 1:        {false, false},
		Counted:            {true, false},
		WidthAt(now) - 1:   {true, false},
		WidthAt(now):       {true, true},
		2 * WidthAt(now):   {true, true},
		now + time.Minute:  {true, true}, // a clock has jumped
		10 * WidthAt(now):  {true, true},
		time.Hour - 1:      {true, true},
		100 * WidthAt(now): {true, true},
	} {
		var units Units
		var line, path Unit
		units.Freed(&line, &path, age, now, 7)
		assert.Equal(t, [3]uint64{7, 7, 1}, [3]uint64{line.Last, path.Last, uint64(line.Freed())}, "%v", age)
		assert.Equal(t, want.path, path.Ages != nil, "%v", age)
		assert.Equal(t, map[bool]int64{true: 1, false: 0}[want.path], path.Freed(), "%v", age)
		assert.Equal(t, want.grown, line.Grown != nil, "%v", age)
		assert.Equal(t, want.grown, path.Grown != nil, "%v", age)
		if want.grown {
			_, rows := line.Grown.Rows()
			d, b := int(now/WidthAt(now)), int(max(0, now-age)/WidthAt(now))
			require.Len(t, rows, d+1, "%v", age)
			assert.EqualValues(t, 1, rows[d][b], "%v", age)
		}
	}
}

// TestACopyIsApart from the unit, and has the windows only if they are asked for.
func TestACopyIsApart(t *testing.T) {
	var lock sync.Mutex
	empty := new(Unit).Copy(&lock, true)
	assert.Equal(t, new(Unit), empty)

	var units Units
	var line, path Unit
	free := func(now time.Duration) { units.Freed(&line, &path, 10*time.Second, now, uint64(now)) }
	free(20 * time.Second)
	line.Allocated = 3
	light, whole := line.Copy(&lock, false), line.Copy(&lock, true)
	assert.Nil(t, light.Grown)
	require.NotNil(t, whole.Grown)
	ages, triangle := *line.Ages, *line.Grown
	free(30 * time.Second)
	for _, own := range []*Unit{light, whole} {
		assert.Equal(t, ages, *own.Ages)
		assert.Equal(t, Unit{Ages: own.Ages, Last: uint64(20 * time.Second), Grown: own.Grown, Allocated: 3}, *own)
	}
	assert.Equal(t, triangle, *whole.Grown)
	assert.NotEqual(t, triangle, *line.Grown)
	assert.True(t, lock.TryLock(), "it is released")
}

// TestUnitsShareTheirLimit: at the limit, a triangle that has become empty makes place for another. It is found within
// a few tries, and the others stay.
func TestUnitsShareTheirLimit(t *testing.T) {
	const s = time.Second
	fill := func() (*Units, []Unit) {
		var us Units
		all := make([]Unit, maxTriangles)
		for i := range all {
			us.count(&all[i], 100*s, 200*s)
		}
		require.Len(t, us.with, maxTriangles)
		return &us, all
	}
	us, _ := fill()
	var late Unit
	us.count(&late, 100*s, 201*s)
	assert.True(t, late.Missed)
	assert.Nil(t, late.Grown)
	us.count(&late, 100*s, 100_000*s)
	assert.True(t, late.Missed, "what was missed once stays unknown")
	assert.Len(t, us.with, maxTriangles)

	us, all := fill()
	us.count(&late, 100*s, 201*s) // and so the first tries fail
	var next Unit
	us.count(&next, 90_000*s, 100_000*s) // a window takes half an hour by now
	assert.False(t, next.Missed)
	require.NotNil(t, next.Grown)
	assert.Len(t, us.with, maxTriangles)
	without := 0
	for i := range all {
		if all[i].Grown == nil {
			without++
		}
	}
	assert.Equal(t, 1, without)
	seen := make(map[*Unit]bool)
	for _, u := range us.with {
		assert.NotNil(t, u.Grown)
		assert.False(t, seen[u], "it is there twice")
		seen[u] = true
	}
	for n := range maxTriangles - 1 { // one after the other
		var more Unit
		us.count(&more, 90_000*s, 100_000*s)
		require.False(t, more.Missed, "%d", n)
	}
	var more Unit
	us.count(&more, 90_000*s, 100_000*s)
	assert.True(t, more.Missed, "none of the others is empty")
}

// TestWindows: there are 32 to 64 of them, equally long, each a power of two of at least 1.07 s.
func TestWindows(t *testing.T) {
	assert.Equal(t, leastWidth, WidthAt(-1))
	for shift := range 62 {
		for _, now := range []time.Duration{1<<shift - 1, 1 << shift, 1<<shift + 1, 3 << shift / 2} {
			width := WidthAt(now)
			require.GreaterOrEqual(t, width, leastWidth)
			require.Less(t, now/width, time.Duration(windows))
			if width > leastWidth {
				require.GreaterOrEqual(t, now/width, time.Duration(windows/2), "%d", now)
			}
		}
	}
}

// TestTrianglesMergeNeighbours: a triangle of longer windows has in each the sum of what the shorter ones had, up to the
// most that a number counts.
func TestTrianglesMergeNeighbours(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	x := &Triangle{shift: leastShift}
	for i := range x.n {
		x.n[i] = random.Uint32N(1000)
	}
	x.n[at(10, 20)], x.n[at(11, 20)] = math.MaxUint32-1, 1
	x.n[at(30, 40)], x.n[at(31, 40)] = math.MaxUint32, math.MaxUint32
	want := make(map[[2]int]uint64)
	for d := range windows {
		for b := range d + 1 {
			want[[2]int{b / 4, d / 4}] += uint64(x.n[at(b, d)])
		}
	}
	y := x.Clone()
	y.fit(4*windows*leastWidth - 1)
	require.Equal(t, leastShift+2, y.shift)
	for d := range windows {
		for b := range d + 1 {
			require.Equal(t, uint32(min(math.MaxUint32, want[[2]int{b, d}])), y.n[at(b, d)], "%d %d", b, d)
		}
	}
	again := y.Clone()
	again.fit(0)
	assert.Equal(t, y, again, "windows do not become shorter")
	assert.NotEqual(t, x, y)
	assert.Nil(t, (*Triangle)(nil).Clone())
}

// TestATriangleCountsWhatOutlivedAWindow: what was born and freed in one window tells nothing.
func TestATriangleCountsWhatOutlivedAWindow(t *testing.T) {
	const w = leastWidth
	for _, test := range []struct {
		born, died time.Duration
		b, d       int // where it is counted; -1 if it is not
	}{
		{0, w - 1, -1, 0}, {w - 1, w, 0, 1}, {-5, w, 0, 1}, {w, 2*w - 1, -1, 0}, {w, 2 * w, 1, 2}, {62*w + 1, 63*w + 5, 62, 63}, {0, 64*w - 1, 0, 63}, {0, 64 * w, 0, 32},
	} {
		x := &Triangle{shift: leastShift}
		x.freed(test.born, test.died)
		_, rows := x.Rows()
		assert.Equal(t, test.b < 0, x.empty(), "%v", test)
		if test.b < 0 {
			assert.Empty(t, rows)
			continue
		}
		require.Len(t, rows, test.d+1, "%v", test)
		require.Len(t, rows[test.d], test.b+1)
		assert.EqualValues(t, 1, rows[test.d][test.b])
	}
	x := &Triangle{shift: leastShift}
	x.n[at(3, 3)] = 5 // as windows that were merged have it
	assert.True(t, x.empty())
	x.n[at(1, 2)] = math.MaxUint32
	assert.False(t, x.empty())
	x.freed(w, 2*w)
	assert.Equal(t, uint32(math.MaxUint32), x.n[at(1, 2)], "a full count stays full")
}

// TestRowsOfAllWindows are read as they were written, whole windows and the shortest width too.
func TestRowsOfAllWindows(t *testing.T) {
	x := &Triangle{shift: leastShift}
	for i := range x.n {
		x.n[i] = uint32(i + 1)
	}
	width, rows := x.Rows()
	assert.Equal(t, leastWidth, width)
	require.Len(t, rows, windows)
	for d, row := range rows {
		require.Len(t, row, d+1)
	}
	again, err := ReadTriangle(width, rows)
	require.NoError(t, err)
	assert.Equal(t, x, again)
	_, rows = (&Triangle{shift: 40}).Rows()
	assert.Empty(t, rows)
	_, err = ReadTriangle(leastWidth, [][]uint32{{1, 2}})
	assert.EqualError(t, err, "window 0 has buffers from 2 windows")
	_, err = ReadTriangle(3, rows)
	assert.EqualError(t, err, "0 windows of 3 ns: want at most 64, of a power of two")
}

// TestPoisson has values of the distribution from tables.
func TestPoisson(t *testing.T) {
	for _, test := range []struct{ k, mean, want float64 }{
		{0, 0, 1}, {0, 1, 0.367879}, {1, 1, 0.735759}, {2, 1, 0.919699}, {3, 10, 0.010336}, {10, 10, 0.583040}, {20, 10, 0.998412},
		{-1, 10, 0}, {100, 100, 0.526562}, {70, 100, 0.000971}, {450, 500, 0.0124084}, {1e9, 3, 1}, {1, 20, 4.32844e-8},
		{500, 501, 0.49406}, {450, 501, 0.01106}, {560, 501, 0.99554}, // from here on a normal distribution stands for it
	} {
		assert.InDelta(t, test.want, poisson(test.k, test.mean), 0.004, "%v", test)
		if test.want > 0 && test.mean <= 500 {
			assert.InEpsilon(t, test.want, poisson(test.k, test.mean), 0.001, "%v", test)
		}
	}
	assert.Less(t, poisson(0, 1e6), 1e-300)
	assert.LessOrEqual(t, poisson(1e6, 2), 1.0)
}

// old are n live buffers of one line, born from first to last in equal steps, of which one in share was kept.
func old(n int, first, last time.Duration, share int) (live []Buffer) {
	for i := range n {
		at := first + (last-first)*time.Duration(i)/time.Duration(max(1, n-1))
		live = append(live, Buffer{Since: at, Seq: uint64(1000 * i), Ordinal: uint16(share * i)})
	}
	return live
}

// TestTheBoundsOfASuspicion has buffers that just are suspected leaks, and the same that just are not.
func TestTheBoundsOfASuspicion(t *testing.T) {
	const (
		s   = time.Second
		now = 1000 * s
	)
	suspects := func(u *Unit, live []Buffer, freed int64) int {
		found, ok := u.Suspected(now, live, freed)
		assert.Equal(t, ok, len(found.Old) > 0)
		return len(found.Old)
	}
	ages := func(counts map[int]uint32) *Unit {
		u := &Unit{Ages: new(Ages)}
		for i, n := range counts {
			u.Ages[i] = n
		}
		return u
	}
	leak := old(24, 0, 900*s, 10)
	for name, test := range map[string]struct {
		unit  *Unit
		live  []Buffer
		freed int64
		want  int
	}{
		"20 were freed":                             {ages(map[int]uint32{2: 20}), old(20, 0, 900*s, 10), 20, 20},
		"19 were freed":                             {ages(map[int]uint32{2: 19}), old(19, 0, 900*s, 10), 19, 0},
		"as many were freed young as are old":       {ages(map[int]uint32{2: 24}), leak, 24, 24},
		"one less, but of those of twice the age":   {ages(map[int]uint32{2: 23}), old(24, 98*s, 998*s+1, 10), 23, 23},
		"8 are old":                                 {ages(map[int]uint32{2: 100}), append(old(8, 0, 900*s, 10), old(10, 1000*s, 1001*s, 1)...), 100, 8},
		"7 are old":                                 {ages(map[int]uint32{2: 100}), append(old(7, 0, 900*s, 10), old(10, 1000*s, 1001*s, 1)...), 100, 0},
		"half of those born are live":               {ages(map[int]uint32{2: 100}), old(24, 0, 900*s, 2), 100, 24},
		"more than half":                            {ages(map[int]uint32{2: 100}), old(24, 0, 900*s, 1), 100, 0},
		"a quarter as many were freed as old":       {ages(map[int]uint32{2: 100, 39: 6}), leak, 106, 24},
		"one more":                                  {ages(map[int]uint32{2: 100, 39: 7}), leak, 107, 0},
		"freed a little younger does not count old": {ages(map[int]uint32{2: 100, 20: 7}), leak, 107, 24},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range test.live {
				test.live[i].Seq = uint64(test.live[i].Since / time.Millisecond)
			}
			test.unit.Last = uint64(now / time.Millisecond)
			assert.Equal(t, test.want, suspects(test.unit, test.live, test.freed))
		})
	}
}

// TestTheAgeOfASuspicion: the ages are tested from the lowest up, as far as their buckets have an end. Young are those
// freed at less than a quarter of the age.
func TestTheAgeOfASuspicion(t *testing.T) {
	const (
		s   = time.Second
		now = 1000 * s
	)
	found, ok := (&Unit{Ages: &Ages{2: 100, 21: 2}}).Suspected(now, old(24, 0, 900*s, 10), 102)
	assert.True(t, ok)
	assert.Equal(t, []any{time.Duration(1 << 30), below(2), int64(2), int64(100)}, []any{found.Age, found.Usual, found.Freed, found.Young})
	suspects := func(now time.Duration, live []Buffer, counts map[int]uint32) (int, time.Duration) {
		u := &Unit{Ages: new(Ages), Last: math.MaxUint64}
		for i, n := range counts {
			u.Ages[i] = n
		}
		for i := range live {
			live[i].Seq = math.MaxUint64 // all are late
		}
		found, _ := u.Suspected(now, live, u.Ages.Count())
		return len(found.Old), found.Age
	}
	for name, test := range map[string]struct {
		now    time.Duration
		live   []Buffer
		counts map[int]uint32
		want   int
		age    time.Duration
	}{
		"the youngest is just old enough":          {now, old(8, 0, now-1<<30, 10), map[int]uint32{2: 100}, 8, 1 << 30},
		"it is just too young":                     {now, old(8, 0, now-1<<30+1, 10), map[int]uint32{2: 100}, 0, 0},
		"half of the age is not young":             {now, old(24, 0, 900*s, 10), map[int]uint32{2: 20, 20: 10}, 24, 1 << 32},
		"a quarter of it is not":                   {now, old(24, 0, 900*s, 10), map[int]uint32{2: 20, 19: 10}, 24, 1 << 31},
		"less is":                                  {now, old(24, 0, 900*s, 10), map[int]uint32{2: 20, 18: 10}, 24, 1 << 30},
		"what was freed later is not young either": {now, old(24, 0, 900*s, 10), map[int]uint32{2: 20, 30: 6}, 0, 0},
		"78 hours or more: no one knows how long":  {1000 * time.Hour, old(24, 0, 900*time.Hour, 10), map[int]uint32{2: 100, 38: 50}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			n, age := suspects(test.now, test.live, test.counts)
			assert.Equal(t, test.want, n)
			assert.Equal(t, test.age, age)
		})
	}
}

// TestRecurs: old buffers must have come over a time as long as the age, and a quarter of them late.
func TestRecurs(t *testing.T) {
	const s = time.Second
	buffers := func(seqs ...uint64) (live []Buffer) {
		for i, seq := range seqs {
			live = append(live, Buffer{Since: 100*s + time.Duration(i)*s, Seq: seq})
		}
		return live
	}
	for _, test := range []struct {
		last uint64
		old  []Buffer
		age  time.Duration
		want bool
	}{
		{10, buffers(0, 1, 2, 5), 3 * s, true}, // the middle is 5
		{10, buffers(0, 1, 2, 5), 3*s + 1, false},
		{10, buffers(0, 1, 2, 4), 3 * s, false},
		{11, buffers(0, 1, 2, 5), 3 * s, true},
		{12, buffers(0, 1, 2, 5), 3 * s, false},
		{30, buffers(20, 21, 22, 25), 3 * s, true},
		{30, buffers(20, 21, 22, 24), 3 * s, false},
		{5, buffers(20, 21, 22, 24), 3 * s, true}, // none was freed since
		{10, buffers(0, 1, 2, 3, 4, 6), 3 * s, false},
		{10, buffers(0, 1, 2, 3, 5, 6), 3 * s, true},
	} {
		assert.Equal(t, test.want, (&Unit{Last: test.last}).recurs(test.old, test.age), "%+v", test)
	}
}

// TestFewBuffersOfOneMomentCountOnce: what a program allocates together it may keep together.
func TestFewBuffersOfOneMomentCountOnce(t *testing.T) {
	const (
		i   = 30 // buffers of at least 2^39 ns
		age = time.Duration(1) << 39
		now = 100 * age
	)
	moment := age / moments
	spread := func(n int, step time.Duration) (live []Buffer) {
		for k := range n {
			live = append(live, Buffer{Since: time.Duration(k) * step})
		}
		return live
	}
	var none Ages
	assert.True(t, none.few(spread(8, moment), i, now))
	assert.False(t, none.few(spread(7, moment), i, now), "too few")
	assert.False(t, none.few(spread(14, moment/2), i, now), "in seven moments")
	assert.True(t, none.few(spread(16, moment/2), i, now), "in eight")
	assert.False(t, none.few(spread(8, moment), i, age+8*moment), "they are hardly older than the age")

	// Eight buffers of 100 times the age: by the rule 0.5*8*ln(100) = 18.4 should have been freed. Three are as few by
	// chance in 0.000012, two in 0.0000019.
	late := func(n uint32) *Ages { return &Ages{i: n} }
	assert.True(t, late(2).few(spread(8, 0+moment), i, now))
	assert.False(t, late(4).few(spread(8, 0+moment), i, now))
	// What was freed later has lived for longer, and so adds to what was expected.
	assert.True(t, (&Ages{39: 4}).few(spread(8, moment), i, now))
	// Buffers hardly older than the age add little, so what was freed decides. That of bucket 37 lived for 7.5 doublings
	// of the age: 14 of them are as few by chance in 0.000011, 15 in 0.0000056.
	assert.False(t, (&Ages{37: 14}).few(spread(8, moment), i, age+8*moment))
	assert.True(t, (&Ages{37: 15}).few(spread(8, moment), i, age+8*moment))
	later := spread(9, moment)[1:]
	assert.True(t, none.few(later, i, now), "the first moment counts, whichever it is")
	// Of two buffers in each moment, the freed count half.
	assert.True(t, late(4).few(spread(16, moment/2), i, now))
	assert.False(t, late(8).few(spread(16, moment/2), i, now))
}

// TestBefore: the age is the end of the oldest bucket that has any.
func TestBefore(t *testing.T) {
	a := Ages{5: 1, 9: 1, 12: 1}
	assert.Equal(t, below(12), a.before(20))
	assert.Equal(t, below(12), a.before(13))
	assert.Equal(t, below(9), a.before(12))
	assert.Equal(t, below(5), a.before(6))
	assert.Equal(t, Counted, a.before(5))
	assert.Equal(t, below(0), (&Ages{0: 1}).before(1))
	assert.Equal(t, time.Duration(math.MaxInt64), below(len(a)-1))
}

// life is when a buffer lived; died is 0 if it is live.
type life struct{ born, died time.Duration }

// TestACensusCountsLives: at the end of each window, it has the buffers that were live then, and of those the old ones.
func TestACensusCountsLives(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 3))
		now := time.Duration(random.Int64N(int64(3*time.Hour))) + 40*leastWidth
		width := WidthAt(now)
		n := int(now / width)
		var lives []life
		var live []Buffer
		u := &Unit{Grown: &Triangle{shift: shiftAt(now)}}
		for range 500 {
			l := life{born: time.Duration(random.Int64N(int64(now)))}
			if random.IntN(2) == 0 {
				if l.died = l.born + width + time.Duration(random.Int64N(int64(now))); l.died > now {
					l.died = 0
				}
			}
			if l.died == 0 {
				live = append(live, Buffer{Since: l.born})
			} else {
				u.Grown.freed(l.born, l.died)
			}
			lives = append(lives, l)
		}
		w, ok := u.census(now, live)
		require.True(t, ok)
		require.Equal(t, n, w.n)
		for _, age := range []int{2, 3, 8, n / 4, n - 1} {
			w.count(age)
			for j := range n {
				var whole, grown, became, gone int64
				for _, l := range lives {
					b, d := int(l.born/width), int(l.died/width)
					if l.died == 0 {
						d = windows
					}
					if b <= j && d > j {
						whole++
						if j-b >= age {
							grown++
						}
					}
					if j-b == age && d >= j {
						became++
					}
					if d == j && j-b >= age {
						gone++
					}
				}
				require.Equal(t, [4]int64{whole, grown, became, gone}, [4]int64{w.whole[j], w.grown[j], w.became[j], w.gone[j]}, "window %d of %d, old from %d", j, n, age)
			}
		}
	}
}

// TestACensusOfAnotherTime: there is none of a unit whose windows are longer than now, or that missed buffers.
func TestACensusOfAnotherTime(t *testing.T) {
	_, ok := (&Unit{Grown: &Triangle{shift: leastShift + 1}}).census(40*leastWidth, nil)
	assert.False(t, ok)
	_, ok = (&Unit{Missed: true}).census(40*leastWidth, nil)
	assert.False(t, ok)
	w, ok := (&Unit{Grown: &Triangle{shift: leastShift}}).census(100*leastWidth, []Buffer{{Since: -5}, {Since: math.MaxInt64}, {Since: 99 * leastWidth}})
	assert.True(t, ok)
	assert.Equal(t, []int64{1, 1, 1}, []int64{w.born[0], w.born[49], w.born[windows-1]})
}

// rising is a census of 32 windows, in which the number of old buffers takes these values, and all others are such that
// nothing else keeps it from growing.
func rising(grown ...int64) *census {
	w := &census{n: len(grown), width: time.Second, old: 2}
	copy(w.grown[:], grown)
	for i := range grown {
		w.whole[i] = 1000 * int64(i)
		w.became[i] = 1
	}
	return w
}

// steps are the numbers from 0 up, one more in each window, for so many windows; then they stay.
func steps(rises, stay int) (grown []int64) {
	for i := range rises + 1 + stay {
		grown = append(grown, int64(min(i, rises)))
	}
	return grown
}

// TestTheBoundsOfGrowth has for each rule what just meets it, and what just misses it.
func TestTheBoundsOfGrowth(t *testing.T) {
	grows := func(w *census) bool { return w.grows(0) }
	assert.True(t, grows(rising(steps(8, 0)...)), "eight rises")
	assert.False(t, grows(rising(steps(7, 0)...)), "seven")
	assert.False(t, grows(rising(0, 10, 20, 30, 40, 50, 60, 70)), "seven, of ten each")
	assert.True(t, grows(rising(0, 0, 1, 2, 3, 4, 5, 6, 7, 8)), "by eight")
	assert.False(t, grows(rising(0, 1, 0, 1, 2, 3, 4, 5, 6, 7)), "eight rises by eight, and a fall")

	// All falls are at most an eighth of the rises.
	assert.True(t, grows(rising(0, 2, 0, 2, 4, 6, 8, 10, 12, 14)), "16 up and 2 down")
	assert.False(t, grows(rising(0, 3, 0, 2, 4, 6, 8, 10, 12, 13)), "16 up and 3 down")

	// The last quarter of the windows brought a fifth of the gain.
	assert.True(t, grows(rising(0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 9, 10)), "2 of 10")
	assert.False(t, grows(rising(0, 1, 2, 3, 4, 5, 6, 7, 9, 9, 9, 9, 10)), "1 of 10")

	// At most half of those that became old were freed since.
	freed := func(n int64) *census {
		w := rising(steps(16, 0)...) // 16 became old after the first window
		w.gone[0], w.became[0] = 1000, 1_000_000
		w.gone[5] = n
		return w
	}
	assert.True(t, grows(freed(8)))
	assert.False(t, grows(freed(9)))

	// The lowest level of all buffers rose by a quarter of the gain: from the mean of the first quarter of the windows to
	// that of the last.
	lowest := func(rise int64) *census {
		w := rising(steps(15, 0)...) // 16 windows, means 1.5 and 13.5
		for i := range w.n {
			w.whole[i] = 100
			if i >= 8 {
				w.whole[i] += rise
			}
		}
		w.whole[3], w.whole[12] = 95, 95+rise // the lowest of each half
		return w
	}
	assert.True(t, grows(lowest(3)))
	assert.False(t, grows(lowest(2)))

	// From a later window, what was before does not count.
	w := rising(append([]int64{50, 40, 30, 20}, steps(8, 0)...)...)
	assert.False(t, w.grows(0))
	assert.True(t, w.grows(4))
	assert.False(t, w.grows(5))
}

// TestWhatIsSaidOfGrowth has the numbers of a growth that is known.
func TestWhatIsSaidOfGrowth(t *testing.T) {
	w := rising(0, 4, 8, 12, 16, 17, 18, 19, 20, 21, 22, 23, 24)
	w.old, w.width = 2, 10*time.Second
	w.gone[1], w.gone[12] = 3, 4
	g := w.growing(0)
	assert.Equal(t, Growing{
		Age: 20 * time.Second, From: -10 * time.Second, To: 110 * time.Second, Freed: 7,
		Now: 0.1, First: 0.4, of: w,
	}, g)
	g = w.growing(4)
	assert.Equal(t, []any{30 * time.Second, int64(4), 0.1, 4}, []any{g.From, g.Freed, g.First, g.from})
}

// TestGrowthIsLookedForInAllAndInTheLatest windows: a line that began to grow lately grows.
func TestGrowthIsLookedForInAllAndInTheLatest(t *testing.T) {
	const w = leastWidth
	every := func(from, to, step time.Duration) (live []Buffer) {
		for at := from; at < to; at += step {
			live = append(live, Buffer{Since: at})
		}
		return live
	}
	for _, test := range []struct {
		now, from time.Duration
		want      bool
	}{
		{31*w + 1, 0, false}, // too early
		{32*w - 1, 0, false},
		{32 * w, 0, true},
		{63 * w, 0, true},
		{63 * w, 20 * w, true},
		{63 * w, 40 * w, true},
		{63 * w, 47 * w, true},
		{63 * w, 55 * w, false}, // not long enough
	} {
		g, ok := new(Unit).Growing(test.now, every(test.from, test.now, w/2))
		assert.Equal(t, test.want, ok, "%v", test)
		if ok {
			assert.LessOrEqual(t, g.From, g.To)
			assert.GreaterOrEqual(t, g.Age, 2*w)
		}
	}
	_, ok := new(Unit).Growing(63*w, every(0, 63*w, 63*w/8))
	assert.False(t, ok, "eight buffers, of which the youngest is not old")
	// Eight that are all old, the last two of them since the last quarter, are enough.
	var eight []Buffer
	for _, b := range []time.Duration{1, 8, 15, 22, 29, 36, 43, 50} {
		eight = append(eight, Buffer{Since: b * w})
	}
	g, ok := new(Unit).Growing(63*w, eight)
	assert.True(t, ok)
	assert.Equal(t, []time.Duration{7 * w, w, 56 * w}, []time.Duration{g.Age, g.From, g.To}, "all windows count")

	// What was there at first and went, one after the other, hides no growth of the latest half.
	u := &Unit{Grown: &Triangle{shift: leastShift}}
	for d := 10; d < 30; d++ {
		for range 20 {
			u.Grown.freed(0, time.Duration(d)*w)
		}
	}
	g, ok = u.Growing(63*w, every(10*w, 63*w, w/2))
	assert.True(t, ok)
	assert.Equal(t, []time.Duration{7 * w, 25 * w}, []time.Duration{g.Age, g.From}, "the second half of 63 windows")
	live := every(0, 63*w, 63*w/64)
	_, ok = new(Unit).Growing(63*w, live[:Fewest-1])
	assert.False(t, ok)
}

// TestTheBoundsOfReplacement: a path that gains replaces others if these lost half of that, and more than they go up and
// down by.
func TestTheBoundsOfReplacement(t *testing.T) {
	const (
		width = leastWidth
		n     = 41
		now   = n * width
	)
	for _, test := range []struct {
		gained int         // by the path, in the last quarter of the windows
		lost   map[int]int // by the others, in each window
		want   bool
	}{
		{10, map[int]int{40: 5}, false}, // a single step is as large as its own movement: 4*25 > 9*25 does not hold
		{10, map[int]int{32: 1, 34: 1, 36: 1, 38: 1, 40: 1}, true},
		{11, map[int]int{32: 1, 34: 1, 36: 1, 38: 1, 40: 1}, false},
		{2, map[int]int{32: 1, 34: 1}, false},        // 4*4 > 9*2 does not hold
		{6, map[int]int{32: 1, 34: 1, 36: 1}, true},  // 4*9 > 9*3
		{4, map[int]int{32: 2, 34: 2, 36: 2}, true},  // 4*36 > 9*12
		{4, map[int]int{32: 2, 34: 1}, false},        // 4*9 > 9*5 does not hold
		{6, map[int]int{20: 1, 22: 1, 24: 1}, false}, // before the last quarter
		{0, map[int]int{}, false},
		{4, map[int]int{31: 2, 33: 2, 35: 2}, true},
		{10, map[int]int{31: 3, 33: 2, 35: 1, 37: 1, -39: 1}, false}, // 4*36 > 9*16 does not hold: one more came
	} {
		t.Run(fmt.Sprint(test), func(t *testing.T) {
			line, path := &Unit{Grown: &Triangle{shift: leastShift}}, &Unit{}
			var gained, others []Buffer
			for i := range 31 {
				gained = append(gained, Buffer{Since: time.Duration(i) * width})
			}
			for i := range test.gained {
				gained = append(gained, Buffer{Since: time.Duration(31+i%10) * width})
			}
			for d, k := range test.lost {
				if d < 0 {
					others = append(others, Buffer{Since: time.Duration(-d) * width})
					continue
				}
				for range k {
					line.Grown.freed(0, time.Duration(d)*width)
				}
			}
			for range 50 {
				others = append(others, Buffer{})
			}
			of, ok := path.census(now, gained)
			require.True(t, ok)
			of.count(2)
			live := append(others, gained...)
			assert.Equal(t, test.want, line.Replaced(now, live, Growing{of: of, from: 0}))
			if test.lost[31] == 2 { // of growth since window 24, the last quarter begins with window 36
				assert.False(t, line.Replaced(now, live, Growing{of: of, from: 24}))
			}
		})
	}
}
