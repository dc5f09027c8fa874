package zoo

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// convNeXtBlock returns a block for this number of channels (arXiv:2201.03545, figure 4), with its
// shortcut.
func convNeXtBlock(channels int, drop bool) tape.Layer {
	block := tape.Sequential{
		layer.Conv2d{In: channels, Out: channels, Kernel: 7, Padding: 3, Groups: channels},
		tape.Permute{0, 2, 3, 1},
		layer.LayerNorm{Size: channels},
		layer.Linear{In: channels, Out: 4 * channels}, layer.GELU{}, layer.Linear{In: 4 * channels, Out: channels},
		tape.Permute{0, 3, 1, 2},
	}
	scale := layer.Scaled{Shape: []int{channels, 1, 1}}
	return tape.Residual{Body: tape.Sequential{
		tape.As("block", block),
		tape.As("layer_scale", scale),
		tape.As("stochastic_depth", tape.If(drop, layer.StochasticDepth{})),
	}}
}

// convNeXtTiny follows arXiv:2201.03545, table 9.
func convNeXtTiny() []tape.Layer {
	features := tape.Sequential{tape.Sequential{layer.Conv2d{In: 3, Out: 96, Kernel: 4, Stride: 4}, layer.LayerNorm2d{Channels: 96}}}
	channels := 96
	for i, blocks := range []int{3, 3, 9, 3} {
		if i > 0 {
			features = append(features, tape.Sequential{
				layer.LayerNorm2d{Channels: channels}, layer.Conv2d{In: channels, Out: 2 * channels, Kernel: 2, Stride: 2},
			})
			channels *= 2
		}
		var stage tape.Sequential
		for b := range blocks {
			stage = append(stage, convNeXtBlock(channels, i > 0 || b > 0))
		}
		features = append(features, stage)
	}
	return []tape.Layer{
		tape.As("features", features), tape.As("avgpool", layer.AdaptiveAvgPool(1)),
		tape.As("classifier", tape.Sequential{
			layer.LayerNorm2d{Channels: channels}, layer.Flatten{}, layer.Linear{In: channels, Out: 1000},
		}),
	}
}
