package cli

import (
	"cmp"
	"math"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/hostmem"
)

// The flags that limit what is read.
const (
	maxMemoryFlag = "max-memory"
	maxFileFlag   = "max-file"
)

// The default limits. A limit of the memory is a part of what the machine has left; where the system does not say that, it
// is a size that most machines have.
const (
	memoryPart    = 4 // of what is available, a fourth
	leastMemory   = 1 << 30
	unknownMemory = 2 << 30
	defaultFile   = 1 << 40 // a pipe may have no end
)

// addLimitFlags adds the flags that limit a file: of is "a file", or names one.
func addLimitFlags(a *App, cmd *cobra.Command, of string) {
	flags := cmd.Flags()
	flags.Var(SizeFlag(&a.maxFile), maxFileFlag, "the largest `SIZE` of "+of+", unpacked (default: 1TiB)")
	flags.Var(SizeFlag(&a.maxMemory), maxMemoryFlag, "the most memory that the data of "+of+" may take, a `SIZE` (default: a quarter of what is available, at least 1GiB)")
}

// IsLimitFlag reports whether a flag limits what is read. Every command that reads files has these flags.
func IsLimitFlag(name string) bool { return name == maxMemoryFlag || name == maxFileFlag }

// limitsOf returns the limits that the flags set, or the defaults.
func limitsOf(a *App) bounded.Limits {
	l := bounded.Limits{File: int64(cmp.Or(max(a.maxFile, 0), defaultFile)), Memory: int64(max(a.maxMemory, 0))}
	if l.Memory == 0 {
		l.Memory = defaultMemory(hostmem.Available())
	}
	return l
}

func defaultMemory(available int64, known bool) int64 {
	if !known {
		return unknownMemory
	}
	if addresses := addressSpace(); addresses > 0 {
		available = min(available, addresses)
	}
	return max(leastMemory, available/memoryPart)
}

// wholeOf estimates what a file takes of what a limit bounds, from the part of it that was read when the limit was reached:
// so many bytes of the file, which may be packed. It is 0 if the size of the file is not known, or all of it was read.
func wholeOf(limit *bounded.LimitError, read, size int64) alloc.Bytes {
	read = min(read, limit.Read) // of a file that is not packed, the reader's buffer was read ahead
	if size <= 0 || read <= 0 || read >= size {
		return 0
	}
	reached := limit.Limit
	if !limit.Memory {
		reached = limit.Read
	}
	whole := float64(reached) * float64(size) / float64(read)
	if whole > math.MaxInt64/2 {
		return 0
	}
	return alloc.Bytes(whole)
}
