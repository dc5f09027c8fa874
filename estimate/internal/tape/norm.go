package tape

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Size is the memory of x on one device, 0 if it is not known.
func (t *Tape) Size(x Tensor) alloc.Bytes {
	bytes, err := x.Shape.Bytes(x.DType)
	if err != nil || bytes > setting.MaxTotal {
		return 0 // the operation reports it
	}
	if x.split {
		bytes = alloc.Bytes(setting.Part(int64(bytes), t.Cfg.Sharding.Tensor))
	}
	return bytes
}
