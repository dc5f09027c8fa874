package cli

import (
	"fmt"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// memoryGuard ends the program with an error if it takes far more memory than its files may.
// Readers count what they make and refuse a file long before; the guard is for what comes later,
// such as pages and tables. Without it the program would end with a stack trace, or use up the
// machine's memory.
var memoryGuard struct {
	start sync.Once
	limit atomic.Int64
}

// ownMemory is what the program may take beside the data of files.
const ownMemory = 256 << 20

// LimitMemory limits the program's memory from here on. Files may take the limit of --max-memory, and what is made of
// them half as much again. If it is called several times, the largest limit counts.
func LimitMemory(a *App) { limitMemory(limitsOf(a).Memory) }

// limitMemory is LimitMemory for files that may take so many bytes.
func limitMemory(files int64) {
	if !ownProcess {
		return
	}
	most := files + files/2 + ownMemory
	if addresses := addressSpace(); addresses > 0 {
		const runtimes, least = 3 << 29, 64 << 20 // Go's runtime reserves addresses that it does not use
		most = min(most, max(least, (addresses-runtimes)/2))
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
			fmt.Fprintf(os.Stderr, "%s: too large: what is made of the files takes more than %v of memory: raise --max-memory\n", ProgramName, alloc.Bytes(limit))
			os.Exit(ExitFailed)
		}
	}
}
