package zoo

import "github.com/gpumemtrack/gpumemtrack/estimate"

// convNeXtBlock is a block of so many channels (arXiv:2201.03545, figure 4), with its shortcut.
func convNeXtBlock(channels int, drop bool) estimate.Layer {
	block := estimate.Sequential{
		estimate.Conv2d{In: channels, Out: channels, Kernel: 7, Padding: 3, Groups: channels},
		estimate.Permute{Dims: []int{0, 2, 3, 1}},
		estimate.LayerNorm{Size: channels},
		estimate.Linear{In: channels, Out: 4 * channels}, estimate.GELU{}, estimate.Linear{In: 4 * channels, Out: channels},
		estimate.Permute{Dims: []int{0, 3, 1, 2}},
	}
	scale := estimate.Scaled{Shape: []int{channels, 1, 1}}
	return estimate.Residual{Body: estimate.Sequential{
		estimate.As("block", block),
		estimate.As("layer_scale", scale),
		estimate.As("stochastic_depth", estimate.If(drop, estimate.StochasticDepth{})),
	}}
}

// convNeXtTiny follows arXiv:2201.03545, table 9.
func convNeXtTiny() []estimate.Layer {
	features := estimate.Sequential{estimate.Sequential{estimate.Conv2d{In: 3, Out: 96, Kernel: 4, Stride: 4}, estimate.LayerNorm2d{Channels: 96}}}
	channels := 96
	for i, blocks := range []int{3, 3, 9, 3} {
		if i > 0 {
			features = append(features, estimate.Sequential{
				estimate.LayerNorm2d{Channels: channels}, estimate.Conv2d{In: channels, Out: 2 * channels, Kernel: 2, Stride: 2},
			})
			channels *= 2
		}
		var stage estimate.Sequential
		for b := range blocks {
			stage = append(stage, convNeXtBlock(channels, i > 0 || b > 0))
		}
		features = append(features, stage)
	}
	return []estimate.Layer{
		estimate.As("features", features), estimate.As("avgpool", estimate.AdaptiveAvgPool{Out: 1}),
		estimate.As("classifier", estimate.Sequential{
			estimate.LayerNorm2d{Channels: channels}, estimate.Flatten{}, estimate.Linear{In: channels, Out: 1000},
		}),
	}
}
