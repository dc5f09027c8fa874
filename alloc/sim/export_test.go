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
	Pool       = pool
	PoolStats  = poolStats
	Pinned     = pinned
	FaultError = faultError
	ReuseError = reuseError
)

// Other returns the memory that other processes use.
func (d *Device) Other() alloc.Bytes { return d.other }

// Overhead returns the memory that the context takes.
func (d *Device) Overhead() alloc.Bytes { return d.overhead }
