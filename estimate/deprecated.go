package estimate

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// CacheConfig is the former name of KVConfig.
//
// Deprecated: cache.Config is something else; use KVConfig.
type CacheConfig = tape.KVConfig

// Parameter is the former name of Learned.
//
// Deprecated: tracker.Parameter is something else; use Learned.
type Parameter = layer.Learned

// Input is the former name of InputShape.
//
// Deprecated: tracker.Input is something else; use InputShape.
func Input(dims ...int) tape.Option { return tape.InputShape(dims...) }

// DType is the former name of Precision.
//
// Deprecated: alloc.DType is something else; use Precision.
func DType(d alloc.DType) tape.Option { return tape.Precision(d) }
