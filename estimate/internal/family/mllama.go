package family

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// MLlama is the text part of Llama 3.2 Vision: Llama with some blocks that attend to images instead of
// the text (transformers' modeling_mllama.py). Without images such a block does not run. Eight tokens
// are read that are not written.
var MLlama = &Family{
	Name:  "Llama 3.2 Vision",
	style: style{extra: 8, block: mllamaBlock, recurrent: mllamaCrossed},
	Types: []Type{{Name: "mllama_text_model", Base: "MllamaTextModel", Read: readMLlamaText, Text: true}},
}

// mllamaCrossed is the attention to images. Its block does not run, so it keeps nothing.
func mllamaCrossed(c Transformer) *recurrence {
	return &recurrence{part: tape.As("cross_attn", layer.Attention{
		Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, HeadSize: c.HeadSize, NoBias: true, NoOutBias: true, Plain: c.Plain, QKNorm: layer.NormHeads, Cross: true,
	})}
}

func mllamaBlock(c Transformer, b blockParts) tape.Layer {
	block := normedBefore(b, "", "")
	if c.kind&Recurrent == 0 {
		return block
	}
	gate := func(name string) tape.Layer { return tape.Inline(layer.Learned{Name: name, Shape: alloc.Shape{1}}) }
	return Held{Layer: tape.Sequential{tape.Inline(block), gate("cross_attn_attn_gate"), gate("cross_attn_mlp_gate")}}
}

func readMLlamaText(c *Config, a *Model) {
	c.decoder(a, 8, false)
	a.Tied = false // whatever tie_word_embeddings says
	c.Activation(a, c.Word("hidden_act"), "silu")
	crossed := c.List("cross_attention_layers")
	if crossed == nil {
		crossed = []int{3, 8, 13, 18, 23, 28, 33, 38}
	}
	of := map[int]bool{}
	for _, block := range crossed {
		of[block] = true
	}
	a.mark(Recurrent, func(block int) bool { return of[block] })
	if a.Vocab > setting.MaxField {
		c.Fail("vocab_size", "%d is too large", a.Vocab)
	}
}
