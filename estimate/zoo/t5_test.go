package zoo_test

import "github.com/gpumemtrack/gpumemtrack/estimate"

// t5Add adds what a layer makes of the norm of x to x.
func t5Add(name string, l estimate.Layer) estimate.Layer {
	return estimate.Residual{Body: estimate.Sequential{
		estimate.As("layer_norm", estimate.RMSNorm{Size: 512, Unfused: true}),
		estimate.As(name, l),
		estimate.As("dropout", estimate.Dropout{P: 0.1}),
	}}
}

// t5Stack is the encoder or the decoder, whose blocks attend to the encoder's output too.
func t5Stack(decoder bool) estimate.Layer {
	attention := estimate.Attention{Hidden: 512, Heads: 8, NoBias: true, Dropout: 0.1}
	self, cross := attention, attention
	self.Bias = &estimate.RelativeBias{Buckets: 32, Causal: decoder}
	cross.Cross = true
	block := estimate.Sequential{t5Add("SelfAttention", self)}
	if decoder {
		block = append(block, t5Add("EncDecAttention", cross))
	}
	block = append(block, t5Add("DenseReluDense", estimate.Sequential{
		estimate.Linear{In: 512, Out: 2048, NoBias: true}, estimate.ReLU{}, estimate.Dropout{P: 0.1},
		estimate.Linear{In: 2048, Out: 512, NoBias: true},
	}))
	return estimate.Sequential{
		estimate.Dropout{P: 0.1},
		estimate.As("block", estimate.Repeat{N: 6, Layer: block}),
		estimate.As("final_layer_norm", estimate.RMSNorm{Size: 512, Unfused: true}),
		estimate.Dropout{P: 0.1},
	}
}

// t5Small reads a text and the answer to it (arXiv:1910.10683), as transformers' T5ForConditionalGeneration.
func t5Small() []estimate.Layer {
	return []estimate.Layer{estimate.Module{
		Name: "T5",
		Parts: estimate.Sequential{
			estimate.As("shared", estimate.Embedding{Num: 32128, Dim: 512}),
			estimate.As("encoder", t5Stack(false)),
			estimate.As("decoder", t5Stack(true)),
			estimate.As("lm_head", estimate.Linear{In: 512, Out: 32128, NoBias: true, Tied: ".shared.weight"}),
		},
		Run: func(f *estimate.Flow, text estimate.Tensor) estimate.Tensor {
			encoded := f.Call("encoder", f.Call("shared", text))
			decoded := f.Call("decoder", f.Call("shared", f.Input(1)), encoded)
			return f.Call("lm_head", f.Scale(decoded))
		},
	}}
}
