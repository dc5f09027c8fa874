package trackertest

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
)

// Run runs every test body. open is called for each program and each case; it has the
// test close the device.
func Run(t *testing.T, open func(t *testing.T) Rig) {
	t.Run("oracle", func(t *testing.T) { Oracle(t, open) })
	t.Run("out of memory", func(t *testing.T) { OutOfMemory(t, open) })
}

// Oracle runs random programs through the public API, on a device that fails and on
// 1 to 64 goroutines, and compares the tracker with two naive accounts:
// what the goroutines hold (worker), and what the history tells (replay). They are
// compared after each operation where goroutines take turns, and after each
// round where they run at once. Then every Snapshot taken meanwhile must be what the
// events before it come to, field by field: it is of one instant.
//
// A program is its seed. One whose goroutines take turns stops at the first
// operation after which anything differs, and prints what led there.
func Oracle(t *testing.T, open func(t *testing.T) Rig) {
	first, programs, operations := uint64(1), 40, 600
	if cachetest.RaceDetector {
		programs = 16
	}
	if *Long {
		first, programs, operations = uint64(time.Now().UnixNano()), 400, 25_000
	}
	if *seed != 0 {
		first, programs = *seed, 1
	}
	for i := range programs {
		seed := first + uint64(i)
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { runProgram(t, seed, operations, open(t)) })
		if *Long && i%20 == 19 {
			t.Logf("%d programs, %d operations", i+1, (i+1)*operations)
		}
	}
}

// runProgram runs one random program.
func runProgram(t *testing.T, seed uint64, operations int, rig Rig) {
	w := newWorld(t, seed, rig)
	for done := 0; done < operations && !t.Failed(); {
		done += w.round()
		w.check()
		w.between()
	}
	w.finish()
}
