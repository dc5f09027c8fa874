package snapshot

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// MaxStreams is how many streams the entries of a source can distinguish.
const MaxStreams = 1 << 8

// OtherStreams stands for the streams of a program that has used more than MaxStreams.
const OtherStreams = ^alloc.Stream(0)

// streamOf returns the stream of that number. A source that knows none has the default
// stream alone.
func streamOf(streams []alloc.Stream, n uint8) alloc.Stream {
	if int(n) >= len(streams) {
		return 0
	}
	return streams[n]
}

// checkStreams refuses more streams than the entries can tell apart.
func checkStreams(streams []alloc.Stream) error {
	if len(streams) > MaxStreams {
		return fmt.Errorf("%d streams, want at most %d", len(streams), MaxStreams)
	}
	return nil
}
