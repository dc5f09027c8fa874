package estimate_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// recordedRows are peaks of histories that PyTorch recorded, whose stacks tell what the setting was. In this one
// products are in float32, of weights that bitsandbytes restores in float16; attention is the memory-efficient kernel; and
// there is no optimizer.
func recordedRows() []published {
	const source = "cranberrii/ftcourse, memory_snapshot.pickle at 9f4902cf"
	row := published{
		kind: "LoRA", model: "TinyLlama 1.1B, 1000 tokens", setting: "batch 1, QLoRA of rank 16 on NF4, the rest float32, no optimizer", grade: "A", source: source,
		layers: with(tinyLlama.Layers(), estimate.NextToken{}),
		opts: opts(estimate.Tokens(1, 1000), estimate.Train(estimate.NoOptimizer), estimate.PyTorch(2, 1),
			estimate.Adapt(estimate.LoRA{Rank: 16, Targets: []string{"q_proj", "v_proj"}, Dropout: 0.05}),
			estimate.Quantize(estimate.Quantized{Base: estimate.NF4, Restores: alloc.Float16, KeepsInput: true}),
			estimate.Loops(estimate.Loop{ZeroGrad: estimate.ZeroGradFirst, Output: estimate.OutputInPass})),
	}
	allocated, reserved := row, row
	allocated.what, allocated.mib = "allocated", 5603.9
	reserved.what, reserved.mib = "reserved", 6172
	return []published{allocated, reserved}
}

// handmade is a model whose parts its author wrote in elementary operations (kkaitlyn111/cs336-a2-systems). The sizes
// of the recorded blocks say what each of them keeps.
type handmade struct{ hidden, ffn, blocks, heads, vocab int }

// norm divides by the root of the mean of the squares: vector_norm and the division keep one number for each token.
func (m handmade) norm() estimate.Layer {
	return estimate.Module{
		Name: "RMSNorm", Parts: estimate.Sequential{estimate.As("weight", estimate.Scaled{Shape: alloc.Shape{m.hidden}})},
		Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
			one := estimate.Own{Shape: append(x.Shape[:2:2], 1)}
			y := f.Op(estimate.Op{In: []estimate.Tensor{x}, Shape: x.Shape, Keep: []estimate.Tensor{x}, KeepOwn: []estimate.Own{one, one}})
			return f.Call("weight", y)
		},
	}
}

// rotated looks up cosines and sines for each sequence, and writes into a new tensor.
func (m handmade) rotated(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
	table := estimate.Own{Shape: alloc.Shape{x.Dim(0), x.Dim(1), m.hidden / m.heads / 2}}
	return f.Op(estimate.Op{In: []estimate.Tensor{x}, Shape: x.Shape, KeepOwn: []estimate.Own{table, table}})
}

// softmaxByHand subtracts the largest score and divides by the sum.
func softmaxByHand(f *estimate.Flow, scores estimate.Tensor) estimate.Tensor {
	one := append(scores.Shape[:3:3], 1)
	y := f.Op(estimate.Op{In: []estimate.Tensor{scores}, Shape: scores.Shape, KeepOutput: true, KeepOwn: []estimate.Own{{Shape: one, DType: alloc.Int64}, {Shape: one}}})
	return f.Op(estimate.Op{In: []estimate.Tensor{y}, Shape: y.Shape})
}

// attention keeps a mask of all scores.
func (m handmade) attention() estimate.Layer {
	project := estimate.Linear{In: m.hidden, Out: m.hidden, NoBias: true}
	return estimate.Module{
		Name: "Attention", Parts: estimate.Sequential{estimate.As("q", project), estimate.As("k", project), estimate.As("v", project), estimate.As("o", project)},
		Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
			q, k, v := f.Call("q", x), f.Call("k", x), f.Call("v", x)
			q, k = f.Copy(m.rotated(f, q)), f.Copy(m.rotated(f, k))
			batch, length := x.Dim(0), x.Dim(1)
			scores := f.Scale(f.MatMul(q, k, m.hidden/m.heads, batch, m.heads, length, length))
			scores = f.Op(estimate.Op{In: []estimate.Tensor{scores}, Shape: scores.Shape, KeepOwn: []estimate.Own{{Shape: scores.Shape, DType: alloc.Bool}}})
			y := f.MatMul(softmaxByHand(f, scores), f.Copy(v), length, batch, length, m.hidden)
			return f.Call("o", f.Copy(y))
		},
	}
}

// mlp multiplies x by its sigmoid, which are two operations.
func (m handmade) mlp() estimate.Layer {
	wide, narrow := estimate.Linear{In: m.hidden, Out: m.ffn, NoBias: true}, estimate.Linear{In: m.ffn, Out: m.hidden, NoBias: true}
	return estimate.Module{
		Name: "SwiGLU", Parts: estimate.Sequential{estimate.As("w1", wide), estimate.As("w3", wide), estimate.As("w2", narrow)},
		Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
			gate := f.Call("w1", x)
			gate = f.Mul(gate, f.Apply(estimate.Sigmoid{}, gate))
			return f.Call("w2", f.Mul(gate, f.Call("w3", x)))
		},
	}
}

func (m handmade) layers() []estimate.Layer {
	block := estimate.Sequential{
		estimate.Residual{Body: estimate.Sequential{m.norm(), m.attention()}},
		estimate.Residual{Body: estimate.Sequential{m.norm(), m.mlp()}},
	}
	return []estimate.Layer{
		estimate.Embedding{Num: m.vocab, Dim: m.hidden}, estimate.Repeat{N: m.blocks, Layer: block}, m.norm(),
		estimate.Linear{In: m.hidden, Out: m.vocab, NoBias: true},
	}
}

// What a forward pass left on a GPU, to the byte: what is kept, and the logits. It had the tokens before, and in the first
// recording it made cuBLAS's workspace too.
func TestRecordedForwardPasses(t *testing.T) {
	m := handmade{hidden: 2560, ffn: 10240, blocks: 32, heads: 32, vocab: 10000}
	for length, left := range map[int]alloc.Bytes{128: 5_723_951_104 - 32*alloc.MiB, 512: 30_009_344_000} {
		r := model(t, m.layers(), estimate.Tokens(4, length))
		tokens, logits := alloc.Bytes(4*length*8), alloc.Bytes(4*length*m.vocab*4)
		assert.Equal(t, left, r.Kept-tokens+logits, "%d tokens", length)
	}
}
