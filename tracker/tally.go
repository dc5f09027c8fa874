package tracker

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// count adds buffers to a sum.
func count(sum *snapshot.Tally, buffers int64, bytes alloc.Bytes) {
	*sum = sum.Add(snapshot.Tally{Count: buffers, Bytes: bytes})
}
