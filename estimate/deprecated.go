package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// CacheConfig is the former name of KVConfig.
//
// Deprecated: alloc.CacheConfig is something else; use KVConfig.
type CacheConfig = KVConfig

// Parameter is the former name of Learned.
//
// Deprecated: tracker.Parameter is something else; use Learned.
type Parameter = Learned

// Input is the former name of InputShape.
//
// Deprecated: tracker.Input is something else; use InputShape.
func Input(dims ...int) Option { return InputShape(dims...) }

// DType is the former name of Precision.
//
// Deprecated: alloc.DType is something else; use Precision.
func DType(d alloc.DType) Option { return Precision(d) }
