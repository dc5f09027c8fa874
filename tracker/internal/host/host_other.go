//go:build !linux

package host

import "github.com/gpumemtrack/gpumemtrack/alloc"

// proc knows nothing on this system: getrusage, which the standard library has, does not return the present level, and
// the unit of its peak differs from system to system.
type proc struct{}

func (proc) init()                                    {}
func (proc) resident() alloc.Bytes                    { return -1 }
func (proc) residentAndPeak() (now, peak alloc.Bytes) { return -1, -1 }
func (proc) resetPeak(string) alloc.Bytes             { return 0 }
func (proc) close()                                   {}
