package family

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Gemma4 is Gemma 3 whose blocks without a window have another size of heads. Some have Gemma 3n's
// embeddings for each block and shared keys and values, others a mixture beside the MLP
// (modeling_gemma4.py).
var Gemma4 = &Family{
	Name:      "Gemma 4",
	style:     style{scaled: true, embedded: gemma4Embedded, mlp: gemma4MLP, norm: gemma3nNorm, attention: gemma4Attention, rotations: func(Transformer) int { return 2 }, block: gemma4Block},
	fullHeads: func(c Transformer) (heads, size int) { own := globalOf(c); return own.heads, own.size },
	Types:     []Type{{Name: "gemma4_text", Base: "Gemma4TextModel", PerLayer: true, Read: readGemma4}},
	GGUF: []GGUF{
		{Name: "gemma4", With: Transformer{Attention: Attention{QKNorm: layer.NormHeads}, Head: Head{CappedLogits: true}}, Blocks: true, Read: ggufGemma4},
	},
}

// global holds what differs in blocks without a window, and what all blocks of Gemma 4 have.
type global struct {
	heads, size  int  // of keys and values
	keysOnly     bool // values are keys before their norm
	both         bool // in blocks with a window, tokens of an image attend to later ones of it
	doubled      bool // blocks that borrow keys and values have an MLP twice as wide
	vocab, inner int  // embeddings for each block; an inner of 0 means none
}

func globalOf(c Transformer) global {
	if own := Own[global](c); own != nil {
		return *own
	}
	return global{heads: setting.Or(c.KVHeads, c.Heads), size: c.HeadWidth()}
}

func gemma4Embedded(c Transformer) []tape.Layer {
	own := globalOf(c)
	if own.inner == 0 {
		return nil
	}
	parts := perBlockParts(c.Hidden, own.vocab, setting.Product(max(0, c.Blocks), own.inner), own.inner)
	return []tape.Layer{tape.Inline(tape.Module{Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		makePerBlock(f, x, c.Blocks, own.inner, false)
		return x
	}})}
}

func gemma4Attention(c Transformer, a *layer.Attention) {
	gemma3nAttention(c, a)
	own := globalOf(c)
	if own.size != c.HeadWidth() {
		a.Rotations = 1 // one table for each width
	}
	a.Masked = own.both && a.Window > 0 && c.runsTower()
	if a.Window == 0 {
		a.HeadSize, a.KVHeads, a.KeysOnly = own.size, own.heads, own.keysOnly
	}
}

func gemma4MLP(c Transformer) tape.Layer {
	if c.kind&Borrowing != 0 && globalOf(c).doubled {
		c.FFN = 2 * min(c.FFN, setting.MaxField/2)
	}
	return gemmaMLP(c)
}

func gemma4Block(c Transformer, b blockParts) tape.Layer {
	own := globalOf(c)
	parts := tape.Sequential{
		b.attention, tape.As("mlp", gemma4MLP(c)), tape.As("input_layernorm", b.norm), tape.As("post_attention_layernorm", b.norm),
		tape.As("pre_feedforward_layernorm", b.norm), tape.As("post_feedforward_layernorm", b.norm), tape.Inline(blockScale{}),
	}
	mixture, sparse := b.mlp.Layer.(layer.MoE)
	if sparse {
		parts = append(parts, tape.As("router", gemma4Router{mixture}), tape.As("experts", layer.Experts{MoE: mixture}),
			tape.As("post_feedforward_layernorm_1", b.norm), tape.As("post_feedforward_layernorm_2", b.norm), tape.As("pre_feedforward_layernorm_2", b.norm))
	}
	if own.inner > 0 {
		parts = append(parts, tape.As("per_layer_input_gate", layer.Linear{In: c.Hidden, Out: own.inner, NoBias: true}),
			tape.As("per_layer_projection", layer.Linear{In: own.inner, Out: c.Hidden, NoBias: true}), tape.As("post_per_layer_input_norm", b.norm))
	}
	return tape.Module{Name: "DecoderBlock", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		x = f.Add(x, f.Call("post_attention_layernorm", f.Call("self_attn", f.Call("input_layernorm", x))))
		y := f.Call("mlp", f.Call("pre_feedforward_layernorm", x))
		if sparse {
			y = f.Call("post_feedforward_layernorm_1", y)
			layer.Routed(f.Tape, f.Call("router", x))
			y = f.Add(y, f.Call("post_feedforward_layernorm_2", f.Call("experts", f.Call("pre_feedforward_layernorm_2", x))))
		}
		x = f.Add(x, f.Call("post_feedforward_layernorm", y))
		if own.inner > 0 {
			y = f.Apply(c.Activation.Layer(layer.UseGELUTanh), f.Call("per_layer_input_gate", x))
			y = f.Mul(y, ofBlock(f.Tape, own.inner))
			x = f.Add(x, f.Call("post_per_layer_input_norm", f.Call("per_layer_projection", y)))
		}
		return f.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, InPlace: true}) // times the block's scalar
	}}
}

// blockScale is the number by which a block multiplies its output.
type blockScale struct{}

func (blockScale) Declare(d *tape.Declaration) { d.Buffer("layer_scalar", 1) }

func (blockScale) Forward(_ *tape.Tape, x tape.Tensor) tape.Tensor { return x }

// gemma4Router chooses experts by a token after a norm and learned factors, and scales each expert
// by a learned number.
type gemma4Router struct{ layer.MoE }

func (gemma4Router) Kind() string { return "Router" }

func (l gemma4Router) proj() tape.Layer {
	return layer.Linear{In: l.Hidden, Out: l.Experts, NoBias: true}
}

func (l gemma4Router) Declare(d *tape.Declaration) {
	d.Param("scale", l.Hidden)
	d.Param("per_expert_scale", l.Experts)
	d.Layer("proj", l.proj())
}

func (l gemma4Router) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	tokens := l.Tokens(t, x)
	norm := altUpNorm(l.Hidden)
	norm.Plain = true
	y := t.Apply(norm, t.View(x, tokens, l.Hidden))
	y = t.Scale(t.Op(tape.Op{In: []tape.Tensor{y}, Shape: y.Shape, Params: true, Keep: t.ForWeights([]tape.Tensor{y})}))
	y = t.Call("proj", l.proj(), y)
	y = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: y.Shape, DType: alloc.Float32, KeepOutput: true}) // their softmax
	chosen := alloc.Shape{tokens, setting.Or(l.TopK, 2)}
	best := t.Op(tape.Op{In: []tape.Tensor{y}, Shape: chosen, KeepOwn: []tape.Own{{Shape: chosen, DType: alloc.Int64}}})
	best = t.Op(tape.Op{In: []tape.Tensor{best}, Shape: chosen, InPlace: true, KeepOwn: []tape.Own{{Shape: chosen}, {Shape: alloc.Shape{tokens, 1}}}})
	return t.Op(tape.Op{In: []tape.Tensor{best}, Shape: chosen, Params: true, Keep: []tape.Tensor{best}, KeepOwn: []tape.Own{{Shape: chosen, DType: x.DType}}})
}

func readGemma4(c *Config, a *Model) {
	gemma2(c, a)
	c.noBias()
	a.QKNorm, a.CappedLogits = layer.NormHeads, c.Has("final_logit_softcapping")
	c.Windows(a, 512, each(6))
	last := a.kinds()
	if n := len(last); n > 0 {
		last[n-1] &^= Windowed // as transformers does
	}
	const mask = "use_bidirectional_attention"
	own := &global{both: string(c.file[mask]) == `"vision"`, doubled: c.Flag("use_double_wide_mlp", false), keysOnly: c.Flag("attention_k_eq_v", false), heads: a.KVHeads}
	a.Own = own
	if a.WholeImages = own.both; own.both {
		c.Harmless(mask) // it is read above; other values change more
	}
	gemma4Heads(c, a, own)
	if own.inner = c.Whole("hidden_size_per_layer_input", 256); own.inner != 0 {
		c.Bounded(&own.inner, "hidden_size_per_layer_input", own.inner)
		c.Number(&own.vocab, "vocab_size_per_layer_input", 262_144)
	}
	if c.Flag("enable_moe_block", false) {
		c.Number(&a.Experts, "num_experts", 0)
		c.Number(&a.TopK, "top_k_experts", 0)
		c.Number(&a.ExpertFFN, "moe_intermediate_size", 0)
	}
	c.borrowing(a, 0)
	if !slices.ContainsFunc(a.Kinds, func(k BlockKind) bool { return k&Windowed == 0 }) && a.Blocks > 0 {
		c.Fail("layer_types", "no layer attends to all tokens")
	}
}

// gemma4Heads reads the heads of blocks without a window. per_layer_config has replaced the keys that named them.
func gemma4Heads(c *Config, a *Model, own *global) {
	if !c.Given(perLayerKey) {
		c.Number(&own.size, "global_head_dim", 512)
		if own.keysOnly && c.Has("num_global_key_value_heads") {
			c.Number(&own.heads, "num_global_key_value_heads", 0)
		}
		return
	}
	layers := c.perLayer()
	own.size = a.HeadSize
	full := func(block int) bool { return a.Kinds[block]&Windowed == 0 }
	c.ofKind(layers, len(a.Kinds), full, map[string]*int{"head_dim": &own.size, "num_key_value_heads": &own.heads})
	c.ofKind(layers, len(a.Kinds), func(block int) bool { return !full(block) }, map[string]*int{"head_dim": &a.HeadSize, "num_key_value_heads": &a.KVHeads})
}

// ggufGemma4 reads what src/models/gemma4.cpp does. The lengths of keys are those of blocks without a window, and a matrix of
// values that such blocks lack tells that they are keys.
func ggufGemma4(m *Metadata, a *Model) {
	own := &global{size: a.HeadSize, heads: a.KVHeads, keysOnly: true}
	a.Own = own
	m.must(&a.HeadSize, "attention.key_length_swa")
	m.must(&a.Window, "attention.sliding_window")
	m.may(&own.inner, "embedding_length_per_layer_input")
	own.vocab = m.Rows("per_layer_token_embd.weight")
	shared := 0
	if m.may(&shared, "attention.shared_kv_layers"); m.err != nil {
		return
	}
	if err := a.borrow(shared); err != nil {
		m.keep(err)
	}
	windowed := m.byBlock(a, "attention.sliding_window_pattern")
	if m.err != nil {
		return
	}
	a.mark(Windowed, func(block int) bool { return windowed[block] != 0 })
	if !slices.Contains(windowed, 0) {
		m.keep(&Error{Where: `metadata key "gemma4.attention.sliding_window_pattern"`, Reason: "no block attends to all tokens"})
	}
	if widths := m.Numbers("gemma4.feed_forward_length"); len(widths) == a.Blocks && len(widths) > 1 {
		a.FFN = max(1, widths[0])
		own.doubled = widths[len(widths)-1] > widths[0]
	}
	heads := m.Numbers("gemma4.attention.head_count_kv")
	for block, kind := range a.Kinds {
		switch byBlock := len(heads) == a.Blocks && len(heads) > 1; {
		case kind&Windowed == 0:
			own.keysOnly = own.keysOnly && (kind&Borrowing != 0 || !m.has(fmt.Sprintf("blk.%d.attn_v.weight", block)))
			if byBlock {
				own.heads = max(1, heads[block])
			}
		case byBlock:
			a.KVHeads = max(1, heads[block])
		}
	}
}
