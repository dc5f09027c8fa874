package tape

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Whole is the size of a weight in a type, on one device.
func (t *Tape) Whole(shape alloc.Shape, d alloc.DType) alloc.Bytes {
	n, err := shape.Bytes(d)
	if err != nil {
		return 0 // the declaration has reported it
	}
	return min(n/alloc.Bytes(t.Cfg.Sharding.Tensor), setting.MaxTotal)
}
