package zoo

import "github.com/gpumemtrack/gpumemtrack/estimate"

// swinBlock is attention within windows and an MLP, each added to what it reads (arXiv:2103.14030, figure 3).
func swinBlock(channels int, shifted, drop bool) estimate.Layer {
	attention := estimate.WindowAttention{Hidden: channels, Heads: channels / 32, Window: 7, Shifted: shifted, Packed: true, Plain: true}
	mlp := estimate.Sequential{
		estimate.Linear{In: channels, Out: 4 * channels}, estimate.GELU{}, estimate.Identity{},
		estimate.Linear{In: 4 * channels, Out: channels}, estimate.Identity{},
	}
	sum := func(norm, name string, l estimate.Layer) estimate.Layer {
		return estimate.Inline(estimate.Residual{Body: estimate.Sequential{
			estimate.As(norm, estimate.LayerNorm{Size: channels}), estimate.As(name, l), estimate.As("stochastic_depth", estimate.If(drop, estimate.StochasticDepth{})),
		}})
	}
	return estimate.Sequential{sum("norm1", "attn", attention), sum("norm2", "mlp", mlp)}
}

// swinTiny follows arXiv:2103.14030, table 7.
func swinTiny() []estimate.Layer {
	channels := 96
	features := estimate.Sequential{estimate.Sequential{
		estimate.Conv2d{In: 3, Out: channels, Kernel: 4, Stride: 4}, estimate.Permute{Dims: []int{0, 2, 3, 1}}, estimate.LayerNorm{Size: channels},
	}}
	for i, blocks := range []int{2, 2, 6, 2} {
		if i > 0 {
			features, channels = append(features, estimate.PatchMerging{Channels: channels}), 2*channels
		}
		var stage estimate.Sequential
		for b := range blocks {
			stage = append(stage, swinBlock(channels, b%2 == 1, i > 0 || b > 0))
		}
		features = append(features, stage)
	}
	return []estimate.Layer{
		estimate.As("features", features),
		estimate.As("norm", estimate.LayerNorm{Size: channels}),
		estimate.As("permute", estimate.Permute{Dims: []int{0, 3, 1, 2}}),
		estimate.As("avgpool", estimate.AdaptiveAvgPool{Out: 1}),
		estimate.As("flatten", estimate.Flatten{}),
		estimate.As("head", estimate.Linear{In: channels, Out: 1000}),
	}
}
