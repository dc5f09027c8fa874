package estimate_test

import (
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// recordedRows are peaks of histories that PyTorch recorded, whose stacks tell what the setting was. In this one
// products are in float32, of weights that bitsandbytes restores in float16; attention is the memory-efficient kernel; and
// there is no optimizer.
func recordedRows() []published {
	const source = "cranberrii/ftcourse, memory_snapshot.pickle at 9f4902cf"
	row := published{
		kind: "LoRA", model: "TinyLlama 1.1B, 1000 tokens", setting: "batch 1, QLoRA of rank 16 on NF4, the rest float32, no optimizer", grade: "A", source: source,
		layers: with(tinyLlama.Layers(), layer.NextToken{}),
		opts: opts(estimate.Tokens(1, 1000), estimate.Train(estimate.NoOptimizer), estimate.PyTorch(2, 1),
			estimate.LoRA{Rank: 16, Targets: []string{"q_proj", "v_proj"}, Dropout: 0.05},
			estimate.Quantized{Base: estimate.NF4}, estimate.Bitsandbytes(0, 41, 0),
			estimate.Loop{ZeroGrad: estimate.ZeroGradFirst, Output: estimate.OutputInPass}),
	}
	allocated, reserved := row, row
	allocated.what, allocated.mib = "allocated", 5603.9
	reserved.what, reserved.mib = "reserved", 6172
	return []published{allocated, reserved}
}
