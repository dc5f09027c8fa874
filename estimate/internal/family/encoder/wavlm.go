package encoder

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// WavLM is wav2vec 2.0 whose scores have learned biases by distance, which each block weighs for
// each token (arXiv:2110.13900, section 3.2; transformers' modeling_wavlm.py).
var WavLM = soundFamily("WavLM", family.Type{Name: "wavlm", Base: "WavLMModel", Read: readWavLM})

func readWavLM(c *family.Config, a *family.Model) {
	var buckets int
	c.Number(&buckets, "num_buckets", 320)
	readSounds(c, a, soundStyle{module: "wavlm", heads: mostSoundHeads, adapts: true, attention: func(c family.Transformer, block int) tape.Layer {
		if block > 0 {
			return wavLMAttention(c, 0)
		}
		return wavLMAttention(c, buckets)
	}})
	family.Own[sounds](a.Transformer).adapted = 0
}

// distanceBiases are the biases of all heads, which the first block makes.
var distanceBiases tape.Slot[tape.Tensor]

// wavLMAttention is nn.functional.multi_head_attention_forward, with the scores in memory. The first
// block also has a table of biases for this many buckets of distances.
func wavLMAttention(c family.Transformer, buckets int) tape.Layer {
	const gates = 8
	size := max(1, c.HeadWidth())
	linear := layer.Linear{In: c.Hidden, Out: c.Hidden}
	parts := tape.Sequential{
		tape.As("k_proj", linear), tape.As("v_proj", linear), tape.As("q_proj", linear), tape.As("out_proj", linear),
		tape.As("gru_rel_pos_linear", layer.Linear{In: size, Out: gates}),
	}
	table := layer.Embedding{Num: buckets, Dim: c.Heads}
	if buckets > 0 {
		parts = append(parts, tape.As("rel_attn_embed", table))
	}
	m := tape.Module{Name: "WavLMAttention", Parts: parts, Params: []tape.Param{{Name: "gru_rel_pos_const", Shape: alloc.Shape{1, c.Heads, 1, 1}}}}
	m.Run = func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		batch, length := x.Dim(0), x.Dim(1)
		scores := alloc.Shape{batch * c.Heads, length, length}
		biases := distanceBiases.Of(f.Tape)
		if buckets > 0 {
			found := f.Permute(f.Call("rel_attn_embed", f.Const(alloc.Int64, length, length)), 2, 0, 1)
			*biases = f.Op(tape.Op{In: []tape.Tensor{found}, Shape: scores})
		}
		// Two numbers for each token and head weigh its biases.
		heads := f.Permute(f.View(x, batch, length, c.Heads, size), 0, 2, 1, 3)
		pair := alloc.Shape{batch, c.Heads, length, 2}
		gate := f.Apply(layer.Sigmoid{}, f.Op(tape.Op{In: []tape.Tensor{f.Call("gru_rel_pos_linear", heads)}, Shape: pair}))
		both := f.Tape.Parts(gate, 1, 1)
		second := f.Op(tape.Op{In: []tape.Tensor{both[1]}, Shape: both[1].Shape, Params: true, Keep: []tape.Tensor{both[1]}})
		weight := f.Scale(f.Mul(both[0], f.Scale(second)))
		weighed := f.Op(tape.Op{In: []tape.Tensor{*biases, weight}, Shape: scores, Keep: []tape.Tensor{*biases, weight}})
		return wavLMScores(f, c, x, weighed)
	}
	return m
}

// wavLMScores adds the biases to the scores, and applies them to the values.
func wavLMScores(f *tape.Flow, c family.Transformer, x, biases tape.Tensor) tape.Tensor {
	batch, length, scores := x.Dim(0), x.Dim(1), biases.Shape
	turned := f.Permute(x, 1, 0, 2)
	q, k, v := f.Call("q_proj", turned), f.Call("k_proj", turned), f.Call("v_proj", turned)
	q = f.Scale(q)
	s := f.Op(tape.Op{In: []tape.Tensor{biases, q, k}, Shape: scores, Keep: []tape.Tensor{q, k}})
	s = f.Apply(layer.Softmax{}, s)
	if c.ScoreDropout > 0 {
		s = f.Apply(layer.Dropout{P: c.ScoreDropout}, s)
	}
	y := f.MatMul(s, v, length, batch*c.Heads, length, x.Dim(2)/max(1, c.Heads))
	y = f.Call("out_proj", f.View(f.Copy(y), length, batch, x.Dim(2)))
	return f.Permute(y, 1, 0, 2)
}
