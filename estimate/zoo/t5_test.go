package zoo_test

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// t5Add adds what a layer makes of the norm of x to x.
func t5Add(name string, l tape.Layer) tape.Layer {
	return tape.Residual{Body: tape.Sequential{
		tape.As("layer_norm", layer.RMSNorm{Size: 512, Unfused: true}),
		tape.As(name, l),
		tape.As("dropout", layer.Dropout{P: 0.1}),
	}}
}

// t5Stack is the encoder or the decoder, whose blocks attend to the encoder's output too.
func t5Stack(decoder bool) tape.Layer {
	attention := layer.Attention{Hidden: 512, Heads: 8, NoBias: true, Dropout: 0.1}
	self, cross := attention, attention
	self.Bias = &layer.RelativeBias{Buckets: 32, Causal: decoder}
	cross.Cross = true
	block := tape.Sequential{t5Add("SelfAttention", self)}
	if decoder {
		block = append(block, t5Add("EncDecAttention", cross))
	}
	block = append(block, t5Add("DenseReluDense", tape.Sequential{
		layer.Linear{In: 512, Out: 2048, NoBias: true}, layer.ReLU{}, layer.Dropout{P: 0.1},
		layer.Linear{In: 2048, Out: 512, NoBias: true},
	}))
	return tape.Sequential{
		layer.Dropout{P: 0.1},
		tape.As("block", tape.Repeat{N: 6, Layer: block}),
		tape.As("final_layer_norm", layer.RMSNorm{Size: 512, Unfused: true}),
		layer.Dropout{P: 0.1},
	}
}

// t5Small reads a text and the answer to it (arXiv:1910.10683), as transformers' T5ForConditionalGeneration.
func t5Small() []tape.Layer {
	return []tape.Layer{tape.Module{
		Name: "T5",
		Parts: tape.Sequential{
			tape.As("shared", layer.Embedding{Num: 32128, Dim: 512}),
			tape.As("encoder", t5Stack(false)),
			tape.As("decoder", t5Stack(true)),
			tape.As("lm_head", layer.Linear{In: 512, Out: 32128, NoBias: true, Tied: ".shared.weight"}),
		},
		Run: func(f *tape.Flow, text tape.Tensor) tape.Tensor {
			encoded := f.Call("encoder", f.Call("shared", text))
			decoded := f.Call("decoder", f.Call("shared", f.Input(1)), encoded)
			return f.Call("lm_head", f.Scale(decoded))
		},
	}}
}
