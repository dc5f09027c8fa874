package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

func qwen3NextAttention(_ Transformer, a *layer.Attention) {
	a.Joined, a.Gated = true, true
	a.HeadNorm = func(_, size int) tape.Layer { return layer.RMSNorm{Size: size, Unfused: true, Shifted: true} }
}
