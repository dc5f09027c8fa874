package family

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// decoder builds the layers of a family that has a style.
func (c Transformer) decoder() []tape.Layer {
	s := c.style()
	body := tape.Sequential{tape.As(s.names.embed, layer.Embedding{Num: c.Vocab + s.extra, Dim: setting.Or(c.EmbedDim, c.Hidden), Split: true})}
	if s.scaled {
		body = append(body, tape.As("embed_scale", scale{}))
	}
	body = append(body, c.towers()...)
	if s.embedded != nil {
		body = append(body, s.embedded(c)...)
	}
	if !s.still && c.turns() {
		body = append(body, tape.As("rotary_emb", c.frequencies(s)))
	}
	body = append(body, tape.As(s.names.blocks, c.decoderBlocks(s)))
	if s.last == nil {
		body = append(body, tape.As(s.names.last, s.norm(c)))
	} else {
		body = append(body, s.last(c)...)
	}
	layers := []tape.Layer{under(s.names.root, body)}
	if c.Classes != 0 {
		return append(layers, c.classifier(c.headWidth())...)
	}
	if !c.NoHead {
		head := layer.Linear{In: c.headWidth(), Out: c.Vocab, NoBias: !s.headBias && !c.HeadBias, Split: layer.ByColumns}
		if c.Tied {
			head.Tied = "." + s.names.root + "." + s.names.embed + ".weight"
		}
		layers = append(layers, layer.Headed(tape.As(s.names.head, head), s.raw)...)
		if c.CappedLogits {
			layers = append(layers, tape.As("softcap", softCap{}))
		}
		if s.after != nil {
			layers = append(layers, s.after(c)...)
		}
	}
	return layers
}

// classifier returns the layers in place of a decoder's head. width is that of what they read.
func (c Transformer) classifier(width int) []tape.Layer {
	score := tape.As("score", layer.Linear{In: width, Out: c.Classes, NoBias: !c.BiasedClasses})
	if c.HeadDropout == 0 {
		return []tape.Layer{score}
	}
	return []tape.Layer{tape.As("dropout", layer.Dropout{P: c.HeadDropout}), score}
}

// headWidth returns the width of what a decoder's head reads.
func (c Transformer) headWidth() int { return setting.Or(c.EmbedDim, c.Hidden) }

// turns reports whether any block rotates.
func (c Transformer) turns() bool {
	return len(c.Kinds) < c.Blocks || slices.ContainsFunc(c.Kinds, func(k BlockKind) bool { return k&NoRotation == 0 })
}

// frequencies returns the buffers of the rotary positions.
func (c Transformer) frequencies(s style) Frequencies {
	f := Frequencies{N: c.rotated() / 2, Kinds: c.rotations(s), Context: c.Context, Mask: c.ContextMask}
	if !s.untabled {
		f.Blocks = c.Blocks
	}
	return f
}

// under returns a layer at a path.
func under(path string, l tape.Layer) tape.Named {
	outer, inner, nested := strings.Cut(path, ".")
	if nested {
		l = tape.Sequential{under(inner, l)}
	}
	return tape.As(outer, l)
}

// decoderBlocks returns the blocks. Each kind of block is made once.
func (c Transformer) decoderBlocks(s style) tape.Layer {
	if c.Blocks < 0 {
		return tape.Wrong(fmt.Sprintf("Blocks is %d: want 0 or more", c.Blocks))
	}
	marked := false
	for _, kind := range c.Kinds {
		marked = marked || kind&Sparse != 0
	}
	sparse := func(block int) bool {
		if marked || c.Experts == 0 {
			return c.Experts != 0 && c.Kind(block)&Sparse != 0
		}
		return block >= c.DenseBlocks
	}
	blocks := Stacked(c.Blocks, func(block int) int {
		kind := int(c.Kind(block) &^ Sparse)
		if sparse(block) {
			kind |= int(Sparse)
		}
		return kind
	}, func(kind, block int) tape.Layer {
		c := c
		c.kind = BlockKind(kind)
		if sparse(block) {
			return c.decoderBlock(s, BlockKind(kind), c.mixture(s))
		}
		return c.decoderBlock(s, BlockKind(kind), s.mlp(c))
	})
	if c.runsTower() {
		blocks.after = deepened
	}
	return blocks
}

// rotations returns how many kinds of layers have rotary tables of their own: Gemma 3 has one for
// layers with a window and one for those without.
func (c Transformer) rotations(s style) int {
	if s.rotations == nil {
		return 1
	}
	return s.rotations(c)
}

// rotated returns the number of elements of a head that rotate.
func (c Transformer) rotated() int {
	if c.Latent != nil {
		return c.Latent.RopeSize
	}
	if c.RotaryDim == 0 && c.Family.OrLlama().style.half {
		return c.HeadWidth() / 2
	}
	return setting.Or(c.RotaryDim, c.HeadWidth())
}

// DecoderBlock is one block of a decoder. All blocks of a kind share one value of it.
type DecoderBlock struct{ tape.Sequential }

func (DecoderBlock) Kind() string { return "DecoderBlock" }

func (b DecoderBlock) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	x = b.Sequential.Forward(t, x)
	t.Hold(*layer.EagerWeights.Of(t)) // a variable of the block's code holds them
	*layer.EagerWeights.Of(t) = tape.Tensor{}
	return x
}

// decoderBlock makes the block with the MLP or mixture.
func (c Transformer) decoderBlock(s style, kind BlockKind, mlp tape.Layer) tape.Layer {
	parts := blockParts{norm: s.norm(c), dropout: c.Drop(), attention: tape.As(s.names.attention, c.attention(s, kind)), mlp: tape.As(s.names.mlp, mlp)}
	if c.Latent != nil {
		latent := *c.Latent
		latent.Hidden, latent.Heads = c.Hidden, c.Heads
		parts.attention.Layer = latent
	}
	if own := c.recurrent(); own != nil && kind&Recurrent != 0 {
		if parts.recurrent = own.part; !own.beside {
			parts.attention = own.part
		}
	}
	return s.block(c, parts)
}

func (c Transformer) attention(s style, kind BlockKind) layer.Attention {
	a := layer.Attention{
		Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, HeadSize: c.HeadSize, NoBias: !c.Bias && !c.AttentionBias && !c.QKVBias,
		NoOutBias: !c.Bias && !c.AttentionBias, Rotary: !s.still, RotaryDim: c.RotaryDim, Plain: c.Plain,
		QKNorm: c.QKNorm, Capped: c.CappedScores, Rotations: c.rotations(s), PerText: c.Batched, Returns: true, Elementary: true,
	}
	if kind&Windowed != 0 {
		a.Window = c.Window
	}
	a.Borrowed = kind&Borrowing != 0
	if s.attention != nil {
		s.attention(c, &a)
	}
	a.Masked = a.Masked || c.runsTower() && c.Vision.Family.Masked
	a.Rotary = a.Rotary && kind&NoRotation == 0
	return a
}

// mixture returns the mixture that replaces the MLP.
func (c Transformer) mixture(s style) tape.Layer {
	m := layer.MoE{
		Hidden: c.Hidden, FFN: setting.Or(c.ExpertFFN, c.FFN), Experts: c.Experts, TopK: c.TopK,
		Shared: c.SharedFFN, SharedGate: c.SharedGate, Router: c.Router, Groups: c.Groups, TopGroups: c.TopGroups, Unscaled: c.UnscaledTopK, Activation: c.Activation,
	}
	if s.mixture != nil {
		return s.mixture(c, m)
	}
	return m
}

// recurrence replaces attention. It keeps a fixed amount of state for a sequence, whatever the
// sequence's length.
type recurrence struct {
	part   tape.Named
	keeps  setting.CacheSpec // of a sequence; the zero value means nothing
	beside bool              // the block has attention too
}

// replaced returns a recurrence that keeps such states.
func replaced(name string, part tape.Layer, keeps setting.CacheSpec) *recurrence {
	return &recurrence{part: tape.As(name, part), keeps: keeps}
}

// recurrent returns the family's recurrence, or nil.
func (c Transformer) recurrent() *recurrence {
	if of := c.Family.OrLlama().style.recurrent; of != nil {
		return of(c)
	}
	return nil
}

// style says where a family's decoder differs from Llama's. Its functions get the Transformer's
// numbers.
type style struct {
	names     decoderNames
	norm      func(Transformer) tape.Layer
	scaled    bool                                     // the token embedding multiplies its vectors by a number
	embedded  func(Transformer) []tape.Layer           // layers after the token embedding, which read the vectors of images too
	last      func(Transformer) []tape.Layer           // layers after the blocks, instead of the norm
	after     func(Transformer) []tape.Layer           // layers after the head
	block     func(Transformer, blockParts) tape.Layer // nil means a norm before each part
	attention func(Transformer, *layer.Attention)      // further settings of attention
	mlp       func(Transformer) tape.Layer
	mixture   func(Transformer, layer.MoE) tape.Layer
	recurrent func(Transformer) *recurrence // of Recurrent blocks; nil if its numbers are missing
	extra     int                           // tokens that the model reads but does not write
	rotations func(Transformer) int         // number of rotary tables; nil means one
	still     bool                          // no rotary positions
	untabled  bool                          // no release had tables of all rotary positions
	half      bool                          // half of a head rotates if no setting says how much
	headBias  bool                          // the head has a bias
	raw       bool                          // no release converted the logits to float32 in the model
}

// decoderNames are the names of the modules; "" means Llama's name.
type decoderNames struct{ root, embed, blocks, last, attention, mlp, head string }

// blockParts is what a block is made of.
type blockParts struct {
	norm, dropout  tape.Layer
	attention, mlp tape.Named
	recurrent      tape.Named // of Recurrent blocks; also the attention, unless both are in the block
}

// style returns the family's style, with Llama's in place of what it leaves out.
func (c Transformer) style() style {
	s := c.Family.OrLlama().style
	n := &s.names
	n.root, n.embed, n.blocks, n.last = setting.Or(n.root, "model"), setting.Or(n.embed, "embed_tokens"), setting.Or(n.blocks, "layers"), setting.Or(n.last, "norm")
	n.attention, n.mlp, n.head = setting.Or(n.attention, "self_attn"), setting.Or(n.mlp, "mlp"), setting.Or(n.head, "lm_head")
	if s.norm == nil {
		s.norm = func(c Transformer) tape.Layer { return layer.RMSNorm{Size: c.Hidden, Unfused: true} }
	}
	if s.block == nil {
		s.block = func(_ Transformer, b blockParts) tape.Layer { return normedBefore(b, "", "") }
	}
	if s.mlp == nil {
		s.mlp = func(c Transformer) tape.Layer {
			return layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Bias: c.Bias || c.MLPBias}
		}
	}
	return s
}

// dropped returns a part followed by dropout. Without a name there is no dropout.
func dropped(name string, part tape.Named, dropout tape.Layer) tape.Sequential {
	if name == "" {
		return tape.Sequential{part}
	}
	return tape.Sequential{part, tape.As(name, dropout)}
}

// normedBefore returns a block of x + part(norm(x)) for attention and for the MLP. The dropouts
// after them have these names.
func normedBefore(b blockParts, afterAttention, afterMLP string) tape.Layer {
	return normedBeforeAs(b, "input_layernorm", "post_attention_layernorm", afterAttention, afterMLP)
}

// normedBeforeAs is normedBefore with other names of the norms.
func normedBeforeAs(b blockParts, first, second, afterAttention, afterMLP string) tape.Layer {
	return DecoderBlock{tape.Sequential{
		tape.Skip(append(tape.Sequential{tape.As(first, b.norm)}, dropped(afterAttention, b.attention, b.dropout)...)...),
		tape.Skip(append(tape.Sequential{tape.As(second, b.norm)}, dropped(afterMLP, b.mlp, b.dropout)...)...),
	}}
}
