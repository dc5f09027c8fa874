package tables

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestAgesCountByPowersOfTwo(t *testing.T) {
	var a ages
	for _, age := range []time.Duration{-1, 0, 1, 1<<10 - 1, 1 << 10, 1<<20 - 1, 1 << 20, 1 << 48, math.MaxInt64} {
		a.add(age)
	}
	want := ages{0: 4, 1: 1, 10: 1, 11: 1, 39: 2}
	assert.Equal(t, want, a)
	assert.Equal(t, int64(9), a.count())
	assert.Equal(t, int64(5), a.atLeast(1<<10))
	assert.Equal(t, int64(3), a.atLeast(1<<20))
	assert.Equal(t, int64(2), a.atLeast(1<<62), "what is beyond the last bucket's bound is in it")
}

func TestUsualAge(t *testing.T) {
	a := ages{5: 990, 9: 10}
	below, share := a.usual()
	assert.Equal(t, time.Duration(1<<15), below)
	assert.InDelta(t, 0.99, share, 1e-12)

	a[9]++
	below, share = a.usual()
	assert.Equal(t, time.Duration(1<<19), below, "one too many are older")
	assert.InDelta(t, 1, share, 0)

	a = ages{39: 1}
	below, _ = a.usual()
	assert.Equal(t, time.Duration(math.MaxInt64), below)
}

// TestFullAges: the shares stay when a bucket is full, and rare old ages are not forgotten.
func TestFullAges(t *testing.T) {
	a := ages{3: math.MaxUint32, 5: 1000, 20: 1}
	a.add(1 << 12)
	assert.Equal(t, ages{3: 1<<31 + 1, 5: 500, 20: 1}, a)
}

// forgotten are live buffers, allocated at so many times from first to last.
func forgotten(n int, first, last time.Duration) []LiveBuffer {
	buffers := make([]LiveBuffer, n)
	for i := range buffers {
		at := first + (last-first)*time.Duration(i)/time.Duration(n-1)
		buffers[i] = LiveBuffer{Since: at, Seq: uint64(at / time.Millisecond), Bytes: 1}
	}
	return buffers
}

// TestSuspectsOfALine has one line that frees within 30 ms; the time is ten
// minutes. Each case differs from the first in what its name says.
func TestSuspectsOfALine(t *testing.T) {
	const (
		s   = time.Second
		now = 600 * s
	)
	freed := func(n, late uint32, age time.Duration) Lifetimes {
		l := Lifetimes{last: 600_000}
		l.ages[ageBucket(30*time.Millisecond)] += n
		l.ages[ageBucket(age)] += late
		return l
	}
	quick := freed(1000, 0, 0)
	leak := forgotten(29, 541*s, 590*s)
	for name, test := range map[string]struct {
		freed Lifetimes
		live  []LiveBuffer
		want  int
	}{
		"a leak":                          {quick, leak, 29},
		"a young one is no suspect":       {quick, append(leak, LiveBuffer{Since: now - s, Seq: 599_000}), 29},
		"a second is old enough":          {quick, append(leak, LiveBuffer{Since: now - minAge, Seq: 598_900}), 30},
		"too few are old":                 {quick, forgotten(7, 541*s, 590*s), 0},
		"just enough":                     {quick, forgotten(8, 541*s, 590*s), 8},
		"too few were freed":              {freed(99, 0, 0), leak, 0},
		"just enough were freed":          {freed(100, 0, 0), leak, 29},
		"2 % lived for 3 s":               {freed(980, 20, 3*s), leak, 0},
		"2 % lived for 3 s, not a minute": {freed(980, 20, 3*s), forgotten(30, 10*s, 500*s), 30},
		"2 % lived for 3 s, many are old": {freed(980, 20, 3*s), forgotten(1000, 541*s, 590*s), 0},
		"3 of 1000 lived for 3 s":         {freed(1000, 3, 3*s), leak, 29},
		"4 of 1000 lived for 3 s":         {freed(1000, 4, 3*s), leak, 0},
		"all of one moment":               {Lifetimes{quick.ages, 580_500}, forgotten(29, 580*s, 580*s+500*time.Millisecond), 0},
		"only at the beginning":           {quick, forgotten(29, s, 50*s), 0},
		"then the line was idle":          {Lifetimes{quick.ages, 50_000}, forgotten(29, s, 50*s), 29},
		"nothing lives":                   {quick, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Len(t, test.freed.Suspects(now, test.live), test.want)
		})
	}
}

func TestUsuallyFreed(t *testing.T) {
	l := &Lifetimes{ages: ages{15: 99, 20: 1}} // below 33 ms, and one below 1.1 s
	now := time.Minute
	assert.False(t, l.UsuallyFreed(now, forgotten(10, 0, now-40*time.Millisecond)))
	assert.True(t, l.UsuallyFreed(now, forgotten(10, now-40*time.Millisecond, now)))
	assert.True(t, l.UsuallyFreed(now, nil))
	assert.False(t, (*Lifetimes)(nil).UsuallyFreed(now, nil), "who knows?")
}
