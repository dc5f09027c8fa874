// Package mem has the words in which memory is described: a [Kind] says what a buffer is for, a
// [Tally] how many buffers there are and of how many bytes, a [Frame], [Stack] or [Path] which code
// allocated them, and an [Action] what happened to one.
//
// They are plain values that know nothing of a device or a tracker, and do not change. Package
// snapshot puts them together. Any goroutine may read them.
package mem

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/saturate"
)

// Tally is a number of buffers and their requested bytes, or a signed difference of two
// tallies.
//
// A sum that does not fit in 64 bits is the largest number that does, or the smallest. That
// happens only to the total of all buffers ever: live buffers, and so all differences of them,
// fit and are exact.
type Tally struct {
	Count int64       `json:"count"`
	Bytes alloc.Bytes `json:"bytes"`
}

// Add returns the sum.
func (a Tally) Add(b Tally) Tally {
	return Tally{saturate.Add(a.Count, b.Count), saturate.Add(a.Bytes, b.Bytes)}
}

// Sub returns the difference a - b.
func (a Tally) Sub(b Tally) Tally {
	return Tally{saturate.Sub(a.Count, b.Count), saturate.Sub(a.Bytes, b.Bytes)}
}

// IsZero reports whether count and bytes are 0.
func (a Tally) IsZero() bool { return a == Tally{} }

// String prints the tally on one line: "3 buffers, 6.8 MiB".
func (a Tally) String() string {
	if a.Count == 1 || a.Count == -1 {
		return fmt.Sprintf("%d buffer, %v", a.Count, a.Bytes)
	}
	return fmt.Sprintf("%d buffers, %v", a.Count, a.Bytes)
}

// CallSiteTally is the part of a tally that one line of code allocated.
type CallSiteTally struct {
	Frame
	Tally
}

// String prints the tally and the line: "3 buffers, 6.8 MiB at main.go:12 main.load".
func (s CallSiteTally) String() string { return fmt.Sprintf("%v at %v", s.Tally, s.Frame) }
