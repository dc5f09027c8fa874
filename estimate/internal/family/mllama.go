package family

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// MLlama is the text part of Llama 3.2 Vision: Llama with some blocks that attend to images instead of
// the text, with what its tower makes of them beside the text (transformers' modeling_mllama.py). Without images such a block does not run. Eight tokens
// are read that are not written.
var MLlama = &Family{
	Name:  "Llama 3.2 Vision",
	style: style{extra: 8, block: mllamaBlock, recurrent: mllamaCrossed},
	Types: []Type{{Name: "mllama_text_model", Base: "MllamaTextModel", Read: readMLlamaText, Text: true}},
}

// mllamaCrossed is the attention to images. It keeps keys and values of their patches; without images its block does not
// run and keeps nothing.
func mllamaCrossed(c Transformer) *recurrence {
	attention := layer.Attention{
		Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, HeadSize: c.HeadSize, NoBias: true, NoOutBias: true, Plain: c.Plain, QKNorm: layer.NormHeads, Cross: true, Numbers: true,
	}
	crossed := recurrence{part: tape.As("cross_attn", attention)}
	if c.runsTower() {
		crossed.keeps = setting.CacheSpec{Kind: setting.Cross, KVHeads: setting.Or(c.KVHeads, c.Heads), HeadSize: c.HeadWidth(), ValueSize: c.HeadWidth(), Source: c.Vision.Prompt.Vectors}
	}
	return &crossed
}

func mllamaBlock(c Transformer, b blockParts) tape.Layer {
	if c.kind&Recurrent == 0 {
		return normedBefore(b, "", "")
	}
	gate := func(name string) tape.Layer {
		return tape.Inline(layer.Scaled{Name: name, Shape: alloc.Shape{1}})
	}
	block := DecoderBlock{tape.Sequential{
		tape.Skip(tape.As("input_layernorm", b.norm), b.attention, gate("cross_attn_attn_gate")),
		tape.Skip(tape.As("post_attention_layernorm", b.norm), b.mlp, tape.Inline(mllamaSeen{}), gate("cross_attn_mlp_gate")),
	}}
	if c.runsTower() {
		return block
	}
	return Held{Layer: block, Tower: true}
}

// mllamaSeen multiplies by 0 what belongs to a token that attends to no image, and else by 1.
type mllamaSeen struct{}

func (mllamaSeen) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor { return t.Mul(x, t.Beside(1)) }

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
