package estimate

import (
	"testing"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// handmade is a model whose parts its author wrote in elementary operations (kkaitlyn111/cs336-a2-systems). The sizes
// of the recorded blocks say what each of them keeps.
type handmade struct{ hidden, ffn, blocks, heads, vocab int }

// norm divides by the root of the mean of the squares: vector_norm and the division keep one number for each token.
func (m handmade) norm() Layer {
	return Module{
		Name: "RMSNorm", Parts: Sequential{As("weight", Scaled{Shape: alloc.Shape{m.hidden}})},
		Run: func(f *Flow, x Tensor) Tensor {
			one := Own{Shape: append(x.Shape[:2:2], 1)}
			y := f.Op(Op{In: []Tensor{x}, Shape: x.Shape, Keep: []Tensor{x}, KeepOwn: []Own{one, one}})
			return f.Call("weight", y)
		},
	}
}

// rotated looks up cosines and sines for each sequence, and writes into a new tensor.
func (m handmade) rotated(f *Flow, x Tensor) Tensor {
	table := Own{Shape: alloc.Shape{x.Dim(0), x.Dim(1), m.hidden / m.heads / 2}}
	return f.Op(Op{In: []Tensor{x}, Shape: x.Shape, KeepOwn: []Own{table, table}})
}

// softmaxByHand subtracts the largest score and divides by the sum.
func softmaxByHand(f *Flow, scores Tensor) Tensor {
	one := append(scores.Shape[:3:3], 1)
	less := f.Op(Op{In: []Tensor{scores}, Shape: scores.Shape, KeepOwn: []Own{{Shape: one, DType: alloc.Int64}}})
	powers := f.Op(Op{In: []Tensor{less}, Shape: scores.Shape, KeepOutput: true, KeepOwn: []Own{{Shape: one}}})
	y := f.Scale(powers)
	f.Hold(less)
	return y
}

// attention keeps a mask of all scores. Its variables live until it returns.
func (m handmade) attention() Layer {
	project := Linear{In: m.hidden, Out: m.hidden, NoBias: true}
	return Module{
		Name: "Attention", Parts: Sequential{As("q", project), As("k", project), As("v", project), As("o", project)},
		Run: func(f *Flow, x Tensor) Tensor {
			q, k, v := f.Call("q", x), f.Call("k", x), f.Call("v", x)
			turned, keys := m.rotated(f, q), m.rotated(f, k)
			batch, length := x.Dim(0), x.Dim(1)
			scores := f.Scale(f.MatMul(f.Copy(turned), f.Copy(keys), m.hidden/m.heads, batch, m.heads, length, length))
			scores = f.Op(Op{In: []Tensor{scores}, Shape: scores.Shape, KeepOwn: []Own{{Shape: scores.Shape, DType: alloc.Bool}}})
			y := f.MatMul(softmaxByHand(f, scores), f.Copy(v), length, batch, length, m.hidden)
			f.Hold(scores)
			y = f.Call("o", f.Copy(y))
			f.Hold(q, k, v, turned, keys)
			return y
		},
	}
}

// mlp multiplies x by its sigmoid, which are two operations.
func (m handmade) mlp() Layer {
	wide, narrow := Linear{In: m.hidden, Out: m.ffn, NoBias: true}, Linear{In: m.ffn, Out: m.hidden, NoBias: true}
	return Module{
		Name: "SwiGLU", Parts: Sequential{As("w1", wide), As("w3", wide), As("w2", narrow)},
		Run: func(f *Flow, x Tensor) Tensor {
			gate := f.Call("w1", x)
			gate = f.Mul(gate, f.Apply(Sigmoid{}, gate))
			return f.Call("w2", f.Mul(gate, f.Call("w3", x)))
		},
	}
}

func (m handmade) layers() []Layer {
	block := Sequential{
		Residual{Body: Sequential{m.norm(), m.attention()}},
		Residual{Body: Sequential{m.norm(), m.mlp()}},
	}
	return []Layer{
		Embedding{Num: m.vocab, Dim: m.hidden}, Repeat{N: m.blocks, Layer: block}, m.norm(),
		Linear{In: m.hidden, Out: m.vocab, NoBias: true},
	}
}

// taped is the model as Model sees it while it estimates.
func (m handmade) taped(t *testing.T, layers []Layer, opts ...Option) (*tape.Tape, *tape.Holding, *Report) {
	t.Helper()
	cfg, err := tape.NewConfig(opts)
	require.NoError(t, err)
	memory := tape.Scratches.Get().(*tape.Scratch)
	decl := tape.NewDeclaration(memory, cfg)
	require.NoError(t, decl.Run(Sequential(layers), cfg.Name))
	held, err := tape.Weigh(decl, cfg)
	require.NoError(t, err)
	recorded, r := newTape(decl, cfg, memory), &Report{}
	require.NoError(t, tapeRecord(recorded, Sequential(layers)))
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
		assert.Equal(t, left, r.Kept-tokens+logits, "%d tokens", length)
	}
}

// The first training steps, in which the optimizer makes its states. A report is of the second, which needs more.
func TestRecordedSteps(t *testing.T) {
	for length, want := range map[int]struct{ requested, allocated, reserved float64 }{
		128: {52263.9, 52392.6, 58280}, 512: {52326.3, 52454.9, 59920},
	} {
		recorded, held, r := recordedModel.taped(t, append(recordedModel.layers(), CrossEntropy{}), Tokens(4, length), Train(AdamW),
			RunsOn(Machine{GPU: Hopper}), Loops(Loop{ZeroGrad: ZeroGradFirst, Output: OutputHeld, Form: OneByOne}))
		_, learn, err := peaks(r, recorded, held)
		require.NoError(t, err)
		got, ok := tapeLearning(recorded, held, learn.stage, r.Training, learn.passes, recorded.Cfg.Usual(recorded.Cfg.Loop), 1).Replay(0)
		require.True(t, ok)
		mib := func(n alloc.Bytes) float64 { return float64(n) / float64(alloc.MiB) }
		assert.InEpsilon(t, want.requested, mib(got.Requested), 0.0001, "%d tokens", length)
		assert.InEpsilon(t, want.allocated, mib(got.Allocated), 0.01, "%d tokens", length)
		assert.InEpsilon(t, want.reserved, mib(got.Reserved), 0.01, "%d tokens", length)
	}
}
