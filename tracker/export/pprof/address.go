package pprof

import (
	"hash/fnv"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// address returns a number for a line of code to stand for its address, which is not
// known. What subtracts profiles without reading their symbols (Pyroscope's scraper, for
// one) knows stacks by the addresses of their frames: equal lines have equal ones in all
// profiles, and others have others. It is below 1<<52, which JavaScript can hold, and not 0.
func address(f snapshot.Frame) uint64 {
	h := fnv.New64a()
	h.Write([]byte(f.Function))
	h.Write([]byte{0})
	h.Write([]byte(f.File))
	h.Write([]byte{0})
	h.Write([]byte(strconv.Itoa(f.Line)))
	return max(1, h.Sum64()>>12)
}
