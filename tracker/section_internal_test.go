package tracker

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/host"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// TestPeaks compares many runs with the level that each section saw itself.
func TestPeaks(t *testing.T) {
	type open struct {
		run
		saw alloc.Bytes
	}
	rand := rand.New(rand.NewPCG(1, 2))
	var p peaks
	var sections []*open
	for range 100_000 {
		level := alloc.Bytes(rand.IntN(1000))
		switch {
		case rand.IntN(100) == 0: // and then some end
			for range rand.IntN(len(sections) + 1) {
				i := rand.IntN(len(sections))
				require.Equal(t, sections[i].saw, p.end(&sections[i].run))
				sections = slices.Delete(sections, i, i+1)
			}
		case rand.IntN(10) == 0:
			s := &open{saw: level}
			p.raise(level)
			p.begin(&s.run, level)
			sections = append(sections, s)
			fallthrough
		default:
			p.raise(level)
			for _, s := range sections {
				s.saw = max(s.saw, level)
				require.Equal(t, s.saw, s.whole().peak)
			}
		}
	}
}

// TestSumsStopAtTheirBounds frees and allocates more than 64 bits count.
func TestSumsStopAtTheirBounds(t *testing.T) {
	const huge = math.MaxInt64/2 + 1
	var own ownMemory
	for range 5 {
		own.allocate(huge)
		own.free(1, huge)
	}
	assert.Equal(t, ownMemory{
		allocated: mem.Tally{Count: 5, Bytes: math.MaxInt64}, freed: mem.Tally{Count: 5, Bytes: math.MaxInt64}, peak: huge,
	}, own)

	var p pathStats
	for range 2 {
		s := &section{
			from:  moment{host: host.Memory{Detail: &host.Detail{}}},
			final: measures{own: own, to: moment{at: math.MaxInt64, cpu: math.MaxInt64, host: host.Memory{Resident: math.MaxInt64, Detail: &host.Detail{Heap: math.MaxInt64}}}},
		}
		p.add(s)
		p.addDeviceTime(math.MaxInt64)
	}
	assert.Equal(t, mem.Tally{Count: 10, Bytes: math.MaxInt64}, p.allocated)
	assert.Equal(t, mem.Tally{Count: 10, Bytes: math.MaxInt64}, p.freed)
	for _, sum := range []int64{int64(p.time), int64(p.deviceTime), int64(p.cpuTime.sum), int64(p.rss.sum), int64(p.heap.sum)} {
		assert.Equal(t, int64(math.MaxInt64), sum)
	}
	assert.Equal(t, mem.Tally{Count: -2, Bytes: math.MinInt64}, mem.Tally{Count: -1, Bytes: -huge}.Add(mem.Tally{Count: -1, Bytes: -huge - 1}))
}
