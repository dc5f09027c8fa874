//go:build !linux

package host

import "github.com/gpumemtrack/gpumemtrack/alloc"

// proc knows nothing here: what the standard library can ask (getrusage) has no
// present level, and a mark in units that differ from system to system.
type proc struct{}

func (proc) init()                                    {}
func (proc) resident() alloc.Bytes                    { return -1 }
func (proc) residentAndPeak() (now, peak alloc.Bytes) { return -1, -1 }
func (proc) resetPeak(string) alloc.Bytes             { return 0 }
func (proc) close()                                   {}
