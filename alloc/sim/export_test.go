package sim

import "github.com/gpumemtrack/gpumemtrack/alloc"

// What tests compare with.
const (
	DefaultMemory   = defaultMemory
	DefaultOverhead = defaultOverhead
	PageSize        = pageSize
	MaxMemory       = maxMemory
)

type (
	Simulated  = device
	Pool       = pool
	PoolStats  = poolStats
	Pinned     = pinned
	FaultError = faultError
	ReuseError = reuseError
)

// Other returns the memory that other processes use.
func (d *device) Other() alloc.Bytes { return d.other }

// Overhead returns the memory that the context takes.
func (d *device) Overhead() alloc.Bytes { return d.overhead }
