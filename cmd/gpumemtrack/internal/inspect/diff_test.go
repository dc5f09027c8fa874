package inspect

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func tally(count int64, bytes alloc.Bytes) mem.Tally {
	return mem.Tally{Count: count, Bytes: bytes}
}

// usage has one buffer at a line of code.
func usage(bytes alloc.Bytes) *export.Usage {
	return &export.Usage{Rows: []export.Row{{CallSite: mem.Frame{File: "main.go", Line: 1, Function: "main.f"}, Totals: snapshot.Totals{Live: tally(1, bytes)}}}}
}

// processesOf returns a process of each rank; of a negative one, whose rank is not known.
func processesOf(processSet ...int) (processes []*export.Usage) {
	for _, rank := range processSet {
		u := usage(alloc.Bytes(100 + rank))
		if rank >= 0 {
			u.Origin.Rank = &rank
		}
		processes = append(processes, u)
	}
	return processes
}

func TestPairsAreOfOneRank(t *testing.T) {
	before, after := processesOf(2, 0, 10), processesOf(10, 0, 1, 2)
	b, a, _ := pair(before, after)
	assert.Equal(t, []*export.Usage{before[0], before[1], before[2], nil}, b)
	assert.Equal(t, []*export.Usage{after[3], after[1], after[0], after[2]}, a)

	_, sum := export.Compare(b, a, "line", "live")
	assert.Equal(t, []mem.Tally{{}, {}, {}, tally(1, 101)}, sum.Ranks, "each against itself, and rank 1 against nothing")

	onlyBefore, _, _ := pair(before, processesOf(0))
	assert.Len(t, onlyBefore, 3)
}

func TestPairsAreOfOnePlaceWhereRanksDoNotTell(t *testing.T) {
	for name, runs := range map[string][2][]*export.Usage{
		"unknown":        {processesOf(-1, -1), processesOf(-1)},
		"partly":         {processesOf(1, 0), processesOf(0, -1)},
		"twice":          {processesOf(1, 0), processesOf(0, 0, 1)},
		"of one run":     {processesOf(-1), processesOf(1, 0)},
		"nothing at all": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := slices.Clone(runs[0]), slices.Clone(runs[1])
			b, a, _ := pair(runs[0], runs[1])
			assert.Len(t, b, max(len(before), len(after)))
			assert.Len(t, a, len(b))
			assert.Equal(t, before, runs[0])
			for i := range b {
				if i < len(before) {
					assert.Same(t, before[i], b[i])
				} else {
					assert.Nil(t, b[i])
				}
				if i < len(after) {
					assert.Same(t, after[i], a[i])
				} else {
					assert.Nil(t, a[i])
				}
			}
		})
	}
}

func TestPairsOfSeveralDevicesAreOfOneDevice(t *testing.T) {
	on := func(rank int, device string) *export.Usage {
		u := processesOf(rank)[0]
		u.Device = device
		return u
	}
	before := []*export.Usage{on(0, "GPU [0]"), on(0, "GPU [1]")}
	after := []*export.Usage{on(0, "GPU [1]"), on(0, "GPU [0]"), on(1, "GPU [0]")}
	b, a, _ := pair(before, after)
	assert.Equal(t, []*export.Usage{before[0], before[1], nil}, b)
	assert.Equal(t, []*export.Usage{after[1], after[0], after[2]}, a)
}

func TestLatestOfEachProcess(t *testing.T) {
	at := func(pid int, device string, minute int) *export.Usage {
		return &export.Usage{
			Origin: snapshot.Origin{Host: "node-1", PID: pid}, Device: device,
			Time: time.Date(2026, 11, 21, 3, minute, 0, 0, time.UTC),
		}
	}
	files := []*export.Usage{
		at(7, "GPU [0]", 1), at(8, "GPU [0]", 1), at(7, "GPU [0]", 3), at(7, "GPU [0]", 2), at(7, "GPU [1]", 1),
		at(0, "GPU [0]", 1), at(0, "GPU [0]", 1), // of processes that do not tell their number
	}
	latest, older := latestOf(files, processOf)
	assert.Equal(t, 2, older)
	assert.Equal(t, []*export.Usage{files[2], files[1], files[4], files[5], files[6]}, latest)
}

func TestRanksApart(t *testing.T) {
	before, after := []*export.Usage{usage(10), usage(10)}, []*export.Usage{usage(15), usage(40), usage(1)}
	lines, _ := export.Compare(before, after, "line", "live")
	rank, change := largestChange(lines[0])
	assert.Equal(t, 1, rank)
	assert.Equal(t, tally(0, 30), change)
	assert.Equal(t, alloc.Bytes(29), spread(lines[0]))
}
