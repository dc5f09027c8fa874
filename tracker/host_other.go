//go:build !linux

package tracker

import "github.com/gpumemtrack/gpumemtrack/alloc"

// residentSet is not known here: what the standard library can ask (getrusage)
// has no present level, and a mark in units that differ from system to system.
func residentSet() (now, peak alloc.Bytes) { return -1, -1 }

func resetHostPeak() alloc.Bytes { return 0 }
