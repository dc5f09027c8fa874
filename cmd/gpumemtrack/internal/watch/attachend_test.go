package watch

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// atPeak returns a snapshot of call sites, each with n buffers of 1 MiB at the peak, and live ones.
func atPeak(t *testing.T, live int64, counts ...int64) *snapshot.Snapshot {
	t.Helper()
	const caller = `{"function": "main", "file": "/home/me/train.py", "line": 20}`
	frames := []string{caller}
	var stacks, sites []string
	var sum int64
	for i, n := range counts {
		line := fmt.Sprintf(`{"function": "layer%d", "file": "/home/me/train.py", "line": %d}`, i, i+1)
		frames = append(frames, line)
		stacks = append(stacks, fmt.Sprintf("[%d, 0]", i+1))
		for _, part := range []int64{n - n/2, n / 2} { // of two sizes
			sites = append(sites, fmt.Sprintf(`{"kind": "Tensor", "memory": "device", "each_bytes": %d, "stack": %d, "call_site": %s, "live_count": %d, "peak_count": %d, "total_count": %d}`,
				1<<20, i, line, live, part, part+live))
		}
		sum += n
	}
	text := fmt.Sprintf(`{"schema": "gpumemtrack.snapshot", "version": 2, "frames": [%s], "stacks": [%s], "sites": [%s]}`,
		strings.Join(frames, ","), strings.Join(stacks, ","), strings.Join(sites, ","))
	s, err := snapshot.Read(strings.NewReader(text))
	require.NoError(t, err)
	s.Peak = mem.Tally{Count: sum, Bytes: alloc.Bytes(sum) * alloc.MiB}
	s.Total = s.Peak
	s.Live = mem.Tally{Count: 2 * live * int64(len(counts)), Bytes: alloc.Bytes(2*live*int64(len(counts))) * alloc.MiB}
	return s
}

func peakText(s *snapshot.Snapshot, stacks bool) string {
	var out strings.Builder
	writeAttachedPeak(&out, s, stacks)
	return out.String()
}

func TestAttachedPeak(t *testing.T) {
	s := atPeak(t, 0, 3, 12, 1)
	assert.Equal(t, `
At the peak, 16 buffers, 16.0 MiB:
12 buffers, 12.0 MiB       |  75.0 % | device   | train.py:2 layer1 <- main
3 buffers, 3.0 MiB         |  18.8 % | device   | train.py:1 layer0 <- main
1 buffer, 1.0 MiB          |   6.2 % | device   | train.py:3 layer2 <- main
`, peakText(s, false))
	assert.Contains(t, peakText(s, true), "layer1 <- main\nlayer1(...)\n\t/home/me/train.py:2\nmain(...)\n\t/home/me/train.py:20\n\n3 buffers")
	assert.Empty(t, peakText(atPeak(t, 0), false), "nothing was allocated")
	assert.NotEmpty(t, peakText(atPeak(t, 1, 5), false), "2 of 5 are live")
	assert.Empty(t, peakText(atPeak(t, 1, 4), false), "the end shows half of it")

	many := make([]int64, 30)
	for i := range many {
		many[i] = int64(i + 1)
	}
	assert.Equal(t, 23, strings.Count(peakText(atPeak(t, 0, many...), false), "\n"))
	assert.Contains(t, peakText(atPeak(t, 0, many...), false), "55 buffers, 55.0 MiB       |  11.8 % | 10 call stacks more\n")
}

// TestAttachedSums: the rows and the others add up to the levels.
func TestAttachedSums(t *testing.T) {
	many := make([]int64, 130)
	for i := range many {
		many[i] = int64(i + 1)
	}
	text, err := json.Marshal(sumsOf(atPeak(t, 1, many...)))
	require.NoError(t, err)
	var read struct {
		Peak       mem.Tally `json:"peak"`
		PeakStacks struct {
			Stacks []struct {
				mem.Tally
				Memory   string    `json:"memory"`
				CallSite mem.Frame `json:"call_site"`
				Stack    mem.Stack `json:"stack"`
				Percent  float64   `json:"percent"`
			} `json:"stacks"`
			Others struct {
				Stacks int `json:"stacks"`
				mem.Tally
			} `json:"others"`
		} `json:"peak_stacks"`
	}
	require.NoError(t, json.Unmarshal(text, &read))
	require.Len(t, read.PeakStacks.Stacks, 100)
	first := read.PeakStacks.Stacks[0]
	assert.Equal(t, mem.Tally{Count: 130, Bytes: 130 * alloc.MiB}, first.Tally)
	assert.Equal(t, mem.Frame{Function: "layer129", File: "/home/me/train.py", Line: 130}, first.CallSite)
	assert.Len(t, first.Stack, 2)
	assert.Equal(t, "device", first.Memory)
	assert.InDelta(t, 1.5, first.Percent, 1e-9)
	assert.Equal(t, 30, read.PeakStacks.Others.Stacks)
	sum := read.PeakStacks.Others.Tally
	for _, one := range read.PeakStacks.Stacks {
		sum = sum.Add(one.Tally)
	}
	assert.Equal(t, read.Peak, sum)

	host := sumsOf(&snapshot.Snapshot{Levels: snapshot.Levels{Memory: map[alloc.Memory]mem.Tally{alloc.PinnedMemory: {Count: 1, Bytes: 5}}}})
	text, err = json.Marshal(host)
	require.NoError(t, err)
	none := `{"stacks":[],"others":{"stacks":0,"count":0,"bytes":0}}`
	assert.JSONEq(t, `{"live":{"count":1,"bytes":5},"peak":null,"total":null,"live_stacks":`+none+`,"peak_stacks":`+none+`}`, string(text))
}
