package survival

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAgesCountByPowersOfTwo(t *testing.T) {
	var a Ages
	for _, age := range []time.Duration{-1, 0, 1, 1<<10 - 1, 1 << 10, 1<<20 - 1, 1 << 20, 1 << 48, math.MaxInt64} {
		a.Add(age)
	}
	assert.Equal(t, Ages{0: 4, 1: 1, 10: 1, 11: 1, 39: 2}, a)
	assert.Equal(t, int64(9), a.Count())
	assert.Equal(t, int64(5), a.from(1))
	for i := range len(a) - 1 {
		assert.Equal(t, i, bucket(below(i)-1))
		assert.Equal(t, i+1, bucket(below(i)))
	}
	a[3] = math.MaxUint32
	a.Add(1 << 12)
	assert.Equal(t, uint32(math.MaxUint32), a[3], "a full one stays full")
}

func TestUsualAge(t *testing.T) {
	a := Ages{5: 990, 9: 10}
	assert.Equal(t, time.Duration(1<<15), a.Usual())
	a[9]++
	assert.Equal(t, time.Duration(1<<19), a.Usual(), "one too many are older")
	a = Ages{39: 1}
	assert.Equal(t, time.Duration(math.MaxInt64), a.Usual())
}

// forgotten are live buffers, allocated at so many times from first to last, one of a hundred of the unit.
func forgotten(n int, first, last time.Duration) []Buffer {
	buffers := make([]Buffer, n)
	for i := range buffers {
		at := first + (last-first)*time.Duration(i)/time.Duration(n-1)
		buffers[i] = Buffer{Since: at, Seq: uint64(at / time.Millisecond), Ordinal: uint16(100 * i), Of: int32(i)}
	}
	return buffers
}

// TestForgotten has one line that frees within 30 ms; the time is ten
// minutes. Each case differs from the first in what its name says.
func TestForgotten(t *testing.T) {
	const (
		s   = time.Second
		now = 600 * s
	)
	freed := func(young, late uint32, age time.Duration) *Unit {
		u := &Unit{Last: 600_000, Ages: new(Ages)}
		u.Ages[bucket(30*time.Millisecond)] += young
		u.Ages[bucket(age)] += late
		return u
	}
	quick := freed(1000, 0, 0)
	leak := forgotten(29, 300*s, 590*s)
	together := forgotten(29, 300*s, 590*s)
	for i := range together {
		together[i].Ordinal = uint16(i)
	}
	for name, test := range map[string]struct {
		unit *Unit
		live []Buffer
		want int
	}{
		"a leak":                                     {quick, leak, 29},
		"a young one does not count":                 {quick, append(leak[:29:29], Buffer{Since: now - s, Seq: 599_000, Ordinal: 9000}), 29},
		"too few are old":                            {quick, forgotten(7, 300*s, 590*s), 0},
		"too few were freed":                         {freed(19, 0, 0), forgotten(12, 300*s, 590*s), 0},
		"fewer were freed than are old":              {freed(20, 0, 0), forgotten(100, 300*s, 590*s), 0},
		"as many lived for a minute as are old":      {freed(1000, 29, 60*s), leak, 0},
		"many lived for a minute, more are old":      {freed(10_000, 29, 60*s), forgotten(290, 100*s, 590*s), 290},
		"a quarter of as many lived for long":        {freed(1000, 8, 300*s), leak, 0},
		"all of one moment":                          {quick, forgotten(29, 580*s, 580*s+500*time.Millisecond), 0},
		"all that were born are live":                {quick, together, 0},
		"only at the beginning":                      {quick, forgotten(29, s, 50*s), 0},
		"then the line was idle":                     {&Unit{Last: 50_000, Ages: quick.Ages}, forgotten(29, s, 50*s), 29},
		"parameters at first, then a leak":           {quick, parameters(200, forgotten(29, 300*s, 590*s)), 57},
		"nothing lives":                              {quick, nil, 0},
		"a path that freed none that was so old":     {&Unit{Last: 600_000}, leak, 29},
		"nothing was freed":                          {new(Unit), leak, 0},
		"a full count, and ordinals that went round": {freed(math.MaxUint32, 0, 0), round(leak), 29},
	} {
		t.Run(name, func(t *testing.T) {
			n := test.unit.Freed()
			if test.unit.Ages == nil && test.unit.Last != 0 {
				n = 1000
			}
			found, ok := test.unit.Suspected(now, test.live, n)
			assert.Equal(t, test.want, len(found.Old))
			assert.Equal(t, test.want > 0, ok)
		})
	}
	found, _ := quick.Suspected(now, leak, 1000)
	assert.Equal(t, Suspected{Old: leak, Age: 1 << 30, Freed: 0, Young: 1000, Usual: 1 << 25}, found)
	found, _ = new(Unit).Suspected(now, leak, 1000)
	assert.Equal(t, Counted, found.Usual, "a path does not count how young they were")
}

// parameters puts n live buffers of one moment before others.
func parameters(n int, then []Buffer) []Buffer {
	all := make([]Buffer, n, n+len(then))
	for i := range all {
		all[i] = Buffer{Since: time.Second, Seq: uint64(i), Ordinal: uint16(i)}
	}
	for _, b := range then {
		b.Ordinal += uint16(n)
		all = append(all, b)
	}
	return all
}

// round lets ordinals begin just below the highest number.
func round(live []Buffer) []Buffer {
	live = append([]Buffer(nil), live...)
	for i := range live {
		live[i].Ordinal += math.MaxUint16 - 10
	}
	return live
}

// TestTriangle compares it with all buffers kept.
func TestTriangle(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		type life struct{ born, died time.Duration }
		var lives []life
		var units Units
		var line, path Unit
		now := time.Duration(0)
		for range 2000 {
			now += time.Duration(random.Int64N(int64(3 * time.Second)))
			born := time.Duration(random.Int64N(int64(now)))
			units.Freed(&line, &path, now-born, now, 1)
			lives = append(lives, life{born, now})
		}
		require.Equal(t, line.Grown, path.Grown)
		width, rows := line.Grown.Rows()
		require.Equal(t, WidthAt(now), width)
		require.Less(t, now/width, time.Duration(windows))
		var got, want int64
		for d, row := range rows {
			for b, n := range row {
				if b < d-1 { // neighbours may have been merged, or too young when they were freed
					got += int64(n)
				}
			}
		}
		for _, l := range lives {
			if l.born/width < l.died/width-1 {
				want++
			}
		}
		require.Equal(t, want, got)
		again, err := ReadTriangle(width, rows)
		require.NoError(t, err)
		require.Equal(t, line.Grown, again)
	}
}

func TestDamagedTriangle(t *testing.T) {
	for name, test := range map[string]struct {
		width time.Duration
		rows  [][]uint32
	}{
		"no width":            {0, nil},
		"a negative width":    {math.MinInt64, nil},
		"a width too small":   {leastWidth / 2, nil},
		"no power of two":     {leastWidth + 1, nil},
		"too many windows":    {leastWidth, make([][]uint32, windows+1)},
		"born after it died":  {leastWidth, [][]uint32{{0}, {0, 1, 1}}},
		"much after it died":  {leastWidth, [][]uint32{make([]uint32, 1<<16)}},
		"a width beyond time": {-1 << 63, nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadTriangle(test.width, test.rows)
			assert.Error(t, err)
		})
	}
	later, err := ReadTriangle(1<<40, nil)
	require.NoError(t, err)
	_, grows := (&Unit{Grown: later}).Growing(time.Minute, forgotten(100, 0, time.Minute))
	assert.False(t, grows, "it is of a later time")
}

// TestTrianglesAreBounded: when there are too many, those that tell nothing any more make room.
func TestTrianglesAreBounded(t *testing.T) {
	var units Units
	lines := make([]Unit, 3*maxTriangles)
	const s = time.Second
	free := func(u *Unit, age, now time.Duration) { units.Freed(u, new(Unit), age, now, 1) }
	for i := range lines {
		free(&lines[i], 2*s, 10*s)
	}
	with := 0
	for i := range lines {
		require.Equal(t, lines[i].Grown == nil, lines[i].Missed)
		if lines[i].Grown != nil {
			with++
		}
	}
	assert.Equal(t, maxTriangles/2, with, "each line has a path")
	_, grows := lines[len(lines)-1].Growing(1000*s, forgotten(500, 0, 1000*s))
	assert.False(t, grows, "old ones were freed, and it is not known when")

	var late Unit
	free(&late, 2000*s, 3000*s)
	assert.NotNil(t, late.Grown, "two seconds are no age any more")
	assert.Len(t, units.with, maxTriangles)
}

// TestWhatGrows has units of which nothing is ever freed: how many are live at each moment
// of an hour, in which the buffers that are live come one after the other.
func TestWhatGrows(t *testing.T) {
	const hour = time.Hour
	even := forgotten(100, 0, hour)
	for name, test := range map[string]struct {
		live []Buffer
		want bool
	}{
		"rises all the time":     {even, true},
		"too few":                {forgotten(7, 0, hour), false},
		"has stopped":            {forgotten(100, 0, hour/2), false},
		"began in the middle":    {forgotten(100, hour/2, hour), true},
		"all at the start":       {forgotten(100, 0, hour/100), false},
		"parameters, and a leak": {parameters(500, forgotten(30, 0, hour)), true},
	} {
		t.Run(name, func(t *testing.T) {
			_, grows := new(Unit).Growing(hour, test.live)
			assert.Equal(t, test.want, grows)
		})
	}
	g, _ := new(Unit).Growing(hour, even)
	assert.InDelta(t, 100./3600, g.Now, 0.005)
	assert.InDelta(t, 100./3600, g.First, 0.005)
	assert.Equal(t, 6*time.Duration(1<<36), g.Age, "an eighth of the 52 windows")
	assert.Zero(t, g.Freed)
}

// TestGrowthOfACache: entries come one a second and are replaced more or less often.
func TestGrowthOfACache(t *testing.T) {
	for name, test := range map[string]struct {
		bound int
		want  bool
	}{"without a bound": {math.MaxInt, true}, "with one, half full": {5000, true}, "full for long": {500, false}} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			var units Units
			var line, path Unit
			var cache []Buffer
			now := time.Duration(0)
			for range 2000 {
				now += time.Second
				if len(cache) >= test.bound || len(cache) > 0 && random.IntN(3) == 0 {
					i := random.IntN(len(cache))
					units.Freed(&line, &path, now-cache[i].Since, now, 1)
					cache = append(cache[:i], cache[i+1:]...)
					if len(cache) < test.bound-1 {
						cache = append(cache, Buffer{Since: now})
					}
				}
				cache = append(cache, Buffer{Since: now})
			}
			_, grows := line.Growing(now, cache)
			assert.Equal(t, test.want, grows)
		})
	}
}

// TestAPathThatReplaces: a call path of a line gains one buffer after the other. The line grows if others do not lose
// as many; that their number goes up and down tells nothing.
func TestAPathThatReplaces(t *testing.T) {
	for name, test := range map[string]struct {
		lost func(i int) bool // by the other paths, when the path gains the buffer of that number
		want bool
	}{
		"it adds":                           {func(int) bool { return false }, false},
		"it replaces":                       {func(int) bool { return true }, true},
		"it replaces three of four":         {func(i int) bool { return i%4 != 0 }, true},
		"it replaces one of four":           {func(i int) bool { return i%4 == 0 }, false},
		"it replaced, and adds now":         {func(i int) bool { return i < 150 }, false},
		"it added, and replaces since 20 %": {func(i int) bool { return i > 160 }, true},
	} {
		t.Run(name, func(t *testing.T) {
			const s = time.Second
			var units Units
			var line, path, others Unit
			filled := make([]Buffer, 400) // by the others, at the start
			var gained []Buffer
			now := time.Duration(0)
			for i := range 200 {
				now += 10 * s
				gained = append(gained, Buffer{Since: now})
				if test.lost(i) {
					units.Freed(&line, &others, now, now, 1)
					filled = filled[1:]
				}
			}
			its, grows := path.Growing(now, gained)
			require.True(t, grows)
			assert.Equal(t, test.want, line.Replaced(now, append(filled, gained...), its))
		})
	}
	t.Run("others go up and down", func(t *testing.T) {
		replaced := 0
		for seed := range uint64(100) {
			random := rand.New(rand.NewPCG(seed, 2))
			var units Units
			var line, path, others Unit
			var sessions, gained []Buffer
			now := time.Duration(0)
			for range 200 {
				now += 10 * time.Second
				gained = append(gained, Buffer{Since: now})
				for range 10 {
					sessions = append(sessions, Buffer{Since: now})
				}
				for range random.IntN(min(21, len(sessions))) {
					units.Freed(&line, &others, now-sessions[0].Since, now, 1)
					sessions = sessions[1:]
				}
			}
			its, grows := path.Growing(now, gained)
			require.True(t, grows)
			if line.Replaced(now, append(sessions, gained...), its) {
				replaced++
			}
		}
		assert.Less(t, replaced, 25)
	})
	var late Unit
	late.Missed = true
	its, _ := new(Unit).Growing(time.Hour, forgotten(100, 0, time.Hour))
	assert.False(t, late.Replaced(time.Hour, forgotten(100, 0, time.Hour), its), "nobody counted what the line freed")
}

// BenchmarkFreed counts a buffer that was freed young, and an old one of a line that frees many.
func BenchmarkFreed(b *testing.B) {
	for name, age := range map[string]time.Duration{"young": time.Millisecond, "old": 10 * time.Minute} {
		b.Run(name, func(b *testing.B) {
			var units Units
			var line, path Unit
			event := uint64(0)
			for b.Loop() {
				event++
				units.Freed(&line, &path, age, time.Hour, event)
			}
		})
	}
}
