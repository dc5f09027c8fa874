package cli

import (
	"cmp"
	"fmt"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

// memoryGuard ends the program with an error where it would take far more memory than its files may. The
// readers count what they make, and refuse a file long before; the guard is for what is made of it later, such as
// pages and tables. Without it the program would end in a stack of the Go runtime's, or take the machine's memory.
var memoryGuard struct {
	on    bool // only in the program itself, not in its tests
	start sync.Once
	limit atomic.Int64
}

// GuardMemory has Within guard the program's memory.
func GuardMemory() { memoryGuard.on = true }

// ownMemory is what the program may take beside what is made of files.
const ownMemory = 256 << 20

// Within bounds the memory of the program from here on: files may take the limit, 0 is the usual one, and half
// as much again may be made of them. The largest limit counts.
func Within(limit alloc.Bytes) {
	if !memoryGuard.on {
		return
	}
	most := int64(cmp.Or(max(limit, 0), bounded.DefaultLimit))
	most += most/2 + ownMemory
	if room := addressSpace(); room > 0 {
		const runtimes, least = 3 << 29, 64 << 20 // Go's runtime reserves addresses that it does not use
		most = min(most, max(least, (room-runtimes)/2))
	}
	if most <= memoryGuard.limit.Load() {
		return
	}
	memoryGuard.limit.Store(most)
	debug.SetMemoryLimit(most)
	memoryGuard.start.Do(func() { go guardMemory() })
}

func guardMemory() {
	const often = 5 * time.Millisecond
	sample := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	for range time.Tick(often) {
		metrics.Read(sample)
		used, limit := int64(sample[0].Value.Uint64()-sample[1].Value.Uint64()), memoryGuard.limit.Load()
		if used > limit+limit/16 { // the garbage collector has done what it can
			fmt.Fprintf(os.Stderr, "%s: too large: what is made of the files takes more than %v of memory\n", ProgramName, alloc.Bytes(limit))
			os.Exit(ExitFailed)
		}
	}
}
