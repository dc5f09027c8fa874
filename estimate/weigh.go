package estimate

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// store puts the size of the weights as they are stored into the memory of inference.
func (r *Report) store(cfg *setting.Config) {
	stored := cfg.Stored
	if stored.Bytes <= 0 || cfg.Sharding.Devices() > 1 {
		return
	}
	if stored.Count > 0 && stored.Count < r.Params.Count {
		stored.Bytes += alloc.Bytes((r.Params.Count - stored.Count) * int64(cfg.Weights.Bits()) / 8)
	}
	more := stored.Bytes - r.Params.Bytes
	r.Params.Bytes = stored.Bytes
	r.Inference.Weights += more
	r.Inference.Peak += more
	if more != 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("inference counts the weights as they are stored, %v", stored.Bytes))
	}
}
