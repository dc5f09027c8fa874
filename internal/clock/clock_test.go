package clock

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNowIsTheSystemsTime compares both clocks while several scales come and go. A slow machine only widens what is allowed.
func TestNowIsTheSystemsTime(t *testing.T) {
	t.Parallel()
	offset := func() time.Duration { return time.Since(begin) }
	scales := make(map[*scale]bool)
	for end := offset() + 3*time.Second; offset() < end; time.Sleep(50 * time.Microsecond) {
		before, now, after := offset(), Now(), offset()
		require.Greater(t, now, before-time.Millisecond)
		require.Less(t, now, after+time.Millisecond)
		scales[current.Load()] = true
	}
	if state == refused {
		t.Skip("the system's clock is not the processor's counter")
	}
	assert.Greater(t, len(scales), 2)
}

// TestBubble asks in a bubble of testing/synctest whenever a scale has ended: its time is not compared with the counter.
func TestBubble(t *testing.T) {
	for end := time.Now().Add(2 * first); time.Now().Before(end); {
		Now()
	}
	comparing.Lock()
	before := state
	comparing.Unlock()
	synctest.Test(t, func(*testing.T) {
		last := current.Swap(new(scale)) // it has ended
		defer current.Store(last)
		Now()
		time.Sleep(time.Hour)
		Now()
	})
	comparing.Lock()
	defer comparing.Unlock()
	assert.Equal(t, before, state)
}

// TestScales follows a counter of each speed, and a system that speeds up and slows down as it is set by others: what is told
// stays near the system's time and never goes back.
func TestScales(t *testing.T) {
	for _, perSecond := range []float64{1e6, 24e6, 1e9, 2.5e9, 5e9} {
		random := rand.New(rand.NewPCG(1, uint64(perSecond)))
		var s *scale
		at, last := reading{count: random.Uint64()}, time.Duration(0)
		for range 2000 {
			drift := 1 + (random.Float64()-0.5)*100e-6
			took := period + time.Duration(random.Float64()*random.Float64()*float64(time.Minute))
			now := reading{at.count + uint64(took.Seconds()*perSecond*drift), at.time + took}
			if s != nil {
				told := s.since + s.span(s.holds)
				end := at.time + time.Duration(float64(took)*(float64(s.holds)/float64(now.count-at.count)))
				require.InDelta(t, end, told, 250e3, perSecond)
				last = max(last, told)
			}
			s = s.next(at, now)
			require.NotNil(t, s, perSecond)
			require.GreaterOrEqual(t, s.since, min(last, s.since), perSecond)
			require.GreaterOrEqual(t, s.since+time.Duration(1), last, perSecond)
			at = now
		}
	}
}

// TestCountersThatCannotBeTrusted are refused: package time is asked from then on.
func TestCountersThatCannotBeTrusted(t *testing.T) {
	before := reading{count: 1 << 40, time: time.Hour}
	good := (*scale)(nil).next(before, reading{before.count + 2e9, before.time + time.Second})
	require.NotNil(t, good)
	for name, now := range map[string]reading{
		"it stands still":        {before.count, before.time + time.Second},
		"it went back":           {before.count - 1e9, before.time + time.Second},
		"it runs faster":         {before.count + 3e9, before.time + time.Second},
		"it runs slower":         {before.count + 1.99e9, before.time + time.Second},
		"it ran while all slept": {before.count + 2e9*3600, before.time + time.Second},
		"the system went back":   {before.count + 2e9, before.time - time.Second},
	} {
		assert.Nil(t, good.next(before, now), name)
	}
}

func BenchmarkNow(b *testing.B) {
	for end := time.Now().Add(2 * first); time.Now().Before(end); {
		Now()
	}
	b.Run("counter", func(b *testing.B) {
		for b.Loop() {
			Now()
		}
	})
	b.Run("system", func(b *testing.B) {
		for b.Loop() {
			_ = time.Since(begin)
		}
	})
}
