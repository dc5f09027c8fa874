package zoo

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// swinBlock is attention within windows and an MLP, each added to what it reads (arXiv:2103.14030, figure 3).
func swinBlock(channels int, shifted, drop bool) tape.Layer {
	attention := layer.WindowAttention{Hidden: channels, Heads: channels / 32, Window: 7, Shifted: shifted, Packed: true, Plain: true}
	mlp := tape.Sequential{
		layer.Linear{In: channels, Out: 4 * channels}, layer.GELU{}, tape.Identity{},
		layer.Linear{In: 4 * channels, Out: channels}, tape.Identity{},
	}
	sum := func(norm, name string, l tape.Layer) tape.Layer {
		return tape.Inline(tape.Residual{Body: tape.Sequential{
			tape.As(norm, layer.LayerNorm{Size: channels}), tape.As(name, l), tape.As("stochastic_depth", tape.If(drop, layer.StochasticDepth{})),
		}})
	}
	return tape.Sequential{sum("norm1", "attn", attention), sum("norm2", "mlp", mlp)}
}

// swinTiny follows arXiv:2103.14030, table 7.
func swinTiny() []tape.Layer {
	channels := 96
	features := tape.Sequential{tape.Sequential{
		layer.Conv2d{In: 3, Out: channels, Kernel: 4, Stride: 4}, tape.Permute{Dims: []int{0, 2, 3, 1}}, layer.LayerNorm{Size: channels},
	}}
	for i, blocks := range []int{2, 2, 6, 2} {
		if i > 0 {
			features, channels = append(features, layer.PatchMerging{Channels: channels}), 2*channels
		}
		var stage tape.Sequential
		for b := range blocks {
			stage = append(stage, swinBlock(channels, b%2 == 1, i > 0 || b > 0))
		}
		features = append(features, stage)
	}
	return []tape.Layer{
		tape.As("features", features),
		tape.As("norm", layer.LayerNorm{Size: channels}),
		tape.As("permute", tape.Permute{Dims: []int{0, 3, 1, 2}}),
		tape.As("avgpool", layer.AdaptiveAvgPool{Out: 1}),
		tape.As("flatten", layer.Flatten{}),
		tape.As("head", layer.Linear{In: channels, Out: 1000}),
	}
}
