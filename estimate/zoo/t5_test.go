package zoo_test

import (
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// chain runs parts one after another, and hands on to each what stands beside.
func chain(layers ...estimate.Layer) estimate.Module {
	var parts estimate.Sequential
	for i, l := range layers {
		parts = append(parts, estimate.As(strconv.Itoa(i), l))
	}
	return estimate.Module{Parts: parts, Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
		for i := range layers {
			x = f.Call(strconv.Itoa(i), x, f.AllBeside()...)
		}
		return x
	}}
}

const t5Hidden, t5Heads, t5Size, t5Drop = 512, 8, 64, 0.1

// t5Attention attends to x or, across, to what the encoder made. The first of a stack has the biases.
func t5Attention(first, across bool) estimate.Module {
	linear := estimate.Linear{In: t5Hidden, Out: t5Heads * t5Size, NoBias: true}
	parts := estimate.Sequential{estimate.As("q", linear), estimate.As("k", linear), estimate.As("v", linear), estimate.As("o", linear)}
	if first {
		parts = append(parts, estimate.As("relative_attention_bias", estimate.Embedding{Num: 32, Dim: t5Heads}))
	}
	return estimate.Module{Name: "T5Attention", Parts: parts, Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
		from := x
		if across {
			from = f.Beside(0)
		}
		batch, length, keys := x.Dim(0), x.Dim(1), from.Dim(1)
		heads := func(name string, x estimate.Tensor) estimate.Tensor {
			return f.Copy(f.View(f.Call(name, x), batch, t5Heads, x.Dim(1), t5Size))
		}
		scores := f.MatMul(heads("q", x), heads("k", from), t5Size, batch, t5Heads, length, keys)
		if first {
			bias := f.Call("relative_attention_bias", f.Const(alloc.Int64, length, keys))
			scores = f.Add(scores, f.Permute(bias, 2, 0, 1))
		}
		weights := f.Apply(estimate.Dropout{P: t5Drop}, f.Apply(estimate.Softmax{}, scores))
		y := f.MatMul(weights, heads("v", from), keys, batch, t5Heads, length, t5Size)
		return f.Call("o", f.View(f.Copy(y), batch, length, t5Heads*t5Size))
	}}
}

// t5Add adds what a layer makes of the norm of x to x.
func t5Add(l estimate.Layer) estimate.Module {
	inner := chain(estimate.RMSNorm{Size: t5Hidden, Unfused: true}, l, estimate.Dropout{P: t5Drop})
	run := inner.Run
	inner.Run = func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor { return f.Add(run(f, x), x) }
	return inner
}

// t5Stack is the encoder or the decoder, with so many blocks.
func t5Stack(blocks int, decoder bool) estimate.Module {
	layers := []estimate.Layer{estimate.Dropout{P: t5Drop}}
	for i := range blocks {
		layers = append(layers, t5Add(t5Attention(i == 0, false)))
		if decoder {
			layers = append(layers, t5Add(t5Attention(false, true)))
		}
		layers = append(layers, t5Add(estimate.Sequential{
			estimate.Linear{In: t5Hidden, Out: 2048, NoBias: true}, estimate.ReLU{}, estimate.Dropout{P: t5Drop}, estimate.Linear{In: 2048, Out: t5Hidden, NoBias: true},
		}))
	}
	return chain(append(layers, estimate.RMSNorm{Size: t5Hidden, Unfused: true}, estimate.Dropout{P: t5Drop})...)
}

// t5Small reads a text and the answer to it (arXiv:1910.10683), as transformers' T5ForConditionalGeneration.
func t5Small() []estimate.Layer {
	return []estimate.Layer{estimate.Module{
		Parts: estimate.Sequential{
			estimate.As("shared", estimate.Embedding{Num: 32128, Dim: t5Hidden}), estimate.As("encoder", t5Stack(6, false)), estimate.As("decoder", t5Stack(6, true)),
			estimate.As("lm_head", estimate.Linear{In: t5Hidden, Out: 32128, NoBias: true, Tied: ".shared.weight"}),
		},
		Run: func(f *estimate.Flow, text estimate.Tensor) estimate.Tensor {
			read := f.Call("encoder", f.Call("shared", text))
			said := f.Call("decoder", f.Call("shared", f.Input(1)), read)
			return f.Call("lm_head", f.Scale(said))
		},
	}}
}
