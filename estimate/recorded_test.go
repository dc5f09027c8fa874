package estimate

import (
	"testing"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/history"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// handmade is a model whose parts its author wrote in elementary operations (kkaitlyn111/cs336-a2-systems). The sizes
// of the recorded blocks say what each of them keeps.
type handmade struct{ hidden, ffn, blocks, heads, vocab int }

// norm divides by the root of the mean of the squares: vector_norm and the division keep one number for each token.
func (m handmade) norm() tape.Layer {
	return tape.Module{
		Name: "RMSNorm", Parts: tape.Sequential{tape.As("weight", layer.Scaled{Shape: alloc.Shape{m.hidden}})},
		Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
			one := tape.Own{Shape: append(x.Shape[:2:2], 1)}
			y := f.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, Keep: []tape.Tensor{x}, KeepOwn: []tape.Own{one, one}})
			return f.Call("weight", y)
		},
	}
}

// rotated looks up cosines and sines for each sequence, and writes into a new tensor.
func (m handmade) rotated(f *tape.Flow, x tape.Tensor) tape.Tensor {
	table := tape.Own{Shape: alloc.Shape{x.Dim(0), x.Dim(1), m.hidden / m.heads / 2}}
	return f.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, KeepOwn: []tape.Own{table, table}})
}

// softmaxByHand subtracts the largest score and divides by the sum.
func softmaxByHand(f *tape.Flow, scores tape.Tensor) tape.Tensor {
	one := append(scores.Shape[:3:3], 1)
	less := f.Op(tape.Op{In: []tape.Tensor{scores}, Shape: scores.Shape, KeepOwn: []tape.Own{{Shape: one, DType: alloc.Int64}}})
	powers := f.Op(tape.Op{In: []tape.Tensor{less}, Shape: scores.Shape, KeepOutput: true, KeepOwn: []tape.Own{{Shape: one}}})
	y := f.Scale(powers)
	f.Hold(less)
	return y
}

// attention keeps a mask of all scores. Its variables live until it returns.
func (m handmade) attention() tape.Layer {
	project := layer.Linear{In: m.hidden, Out: m.hidden, NoBias: true}
	return tape.Module{
		Name: "Attention", Parts: tape.Sequential{tape.As("q", project), tape.As("k", project), tape.As("v", project), tape.As("o", project)},
		Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
			q, k, v := f.Call("q", x), f.Call("k", x), f.Call("v", x)
			turned, keys := m.rotated(f, q), m.rotated(f, k)
			batch, length := x.Dim(0), x.Dim(1)
			scores := f.Scale(f.MatMul(f.Copy(turned), f.Copy(keys), m.hidden/m.heads, batch, m.heads, length, length))
			scores = f.Op(tape.Op{In: []tape.Tensor{scores}, Shape: scores.Shape, KeepOwn: []tape.Own{{Shape: scores.Shape, DType: alloc.Bool}}})
			y := f.MatMul(softmaxByHand(f, scores), f.Copy(v), length, batch, length, m.hidden)
			f.Hold(scores)
			y = f.Call("o", f.Copy(y))
			f.Hold(q, k, v, turned, keys)
			return y
		},
	}
}

// mlp multiplies x by its sigmoid, which are two operations.
func (m handmade) mlp() tape.Layer {
	wide, narrow := layer.Linear{In: m.hidden, Out: m.ffn, NoBias: true}, layer.Linear{In: m.ffn, Out: m.hidden, NoBias: true}
	return tape.Module{
		Name: "SwiGLU", Parts: tape.Sequential{tape.As("w1", wide), tape.As("w3", wide), tape.As("w2", narrow)},
		Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
			gate := f.Call("w1", x)
			gate = f.Mul(gate, f.Apply(layer.Sigmoid{}, gate))
			return f.Call("w2", f.Mul(gate, f.Call("w3", x)))
		},
	}
}

func (m handmade) layers() []tape.Layer {
	block := tape.Sequential{
		tape.Residual{Body: tape.Sequential{m.norm(), m.attention()}},
		tape.Residual{Body: tape.Sequential{m.norm(), m.mlp()}},
	}
	return []tape.Layer{
		layer.Embedding{Num: m.vocab, Dim: m.hidden}, tape.Repeat{N: m.blocks, Layer: block}, m.norm(),
		layer.Linear{In: m.hidden, Out: m.vocab, NoBias: true},
	}
}

// taped is the model as Model sees it while it estimates.
func (m handmade) taped(t *testing.T, layers []tape.Layer, opts ...Option) (*tape.Tape, *tape.Holding, *Report) {
	t.Helper()
	cfg, err := newConfig(opts)
	require.NoError(t, err)
	memory := tape.Scratches.Get().(*tape.Scratch)
	decl := tape.NewDeclaration(memory, cfg)
	require.NoError(t, decl.Run(tape.Sequential(layers), cfg.Name))
	held, err := tape.Weigh(decl, cfg)
	require.NoError(t, err)
	recorded, r := newTape(decl, cfg, memory), &Report{}
	require.NoError(t, record(recorded, tape.Sequential(layers)))
	r.describe(recorded)
	return recorded, held, r
}

var recordedModel = handmade{hidden: 2560, ffn: 10240, blocks: 32, heads: 32, vocab: 10000}

// What a forward pass left on a GPU, to the byte: what is kept, and the logits. It had the tokens before, and in the first
// recording it made cuBLAS's workspace too.
func TestRecordedForwardPasses(t *testing.T) {
	for length, left := range map[int]alloc.Bytes{128: 5_723_951_104 - 32*alloc.MiB, 512: 30_009_344_000} {
		_, _, r := recordedModel.taped(t, recordedModel.layers(), Tokens(4, length))
		tokens, logits := alloc.Bytes(4*length*8), alloc.Bytes(4*length*recordedModel.vocab*4)
		assert.Equal(t, left, r.Retained-tokens+logits, "%d tokens", length)
	}
}

// The first training steps, in which the optimizer makes its states. A report is of the second, which needs more.
func TestRecordedSteps(t *testing.T) {
	for length, want := range map[int]struct{ requested, allocated, reserved float64 }{
		128: {52263.9, 52392.6, 58280}, 512: {52326.3, 52454.9, 59920},
	} {
		recorded, held, r := recordedModel.taped(t, append(recordedModel.layers(), layer.CrossEntropy{}), Tokens(4, length), Train("adamw"),
			Machine{GPU: "hopper"}, Loop{ZeroGrad: "first", Output: "held", Form: "one-by-one"})
		_, learn, err := peaks(r, recorded, held)
		require.NoError(t, err)
		got, ok := history.Learning(recorded, held, learn.stage, r.Training.resident(), learn.passes, recorded.Cfg.Usual(recorded.Cfg.Loop), 1).Replay(0)
		require.True(t, ok)
		mib := func(n alloc.Bytes) float64 { return float64(n) / float64(alloc.MiB) }
		assert.InEpsilon(t, want.requested, mib(got.Requested), 0.0001, "%d tokens", length)
		assert.InEpsilon(t, want.allocated, mib(got.Allocated), 0.01, "%d tokens", length)
		assert.InEpsilon(t, want.reserved, mib(got.Reserved), 0.01, "%d tokens", length)
	}
}
