package setting

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

func IsFloat(d alloc.DType) bool {
	return d == alloc.Float16 || d == alloc.BFloat16 || d == alloc.Float32 || d == alloc.Float64
}
