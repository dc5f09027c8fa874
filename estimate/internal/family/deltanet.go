package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

func qwen3NextAttention(_ Transformer, a *nn.Attention) {
	a.Joined, a.Gated = true, true
	a.HeadNorm = func(_, size int) tape.Layer { return nn.RMSNorm{Size: size, Unfused: true, Shifted: true} }
}
