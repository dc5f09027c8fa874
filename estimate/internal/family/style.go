package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// style is how a family puts a decoder together, where it is not as Llama does. Its functions
// see the Transformer's numbers.
type style struct {
	names     decoderNames
	norm      func(Transformer) tape.Layer
	embedded  func(Transformer) []tape.Layer           // what follows the embedding of tokens
	last      func(Transformer) []tape.Layer           // what follows the blocks, in place of the norm
	after     func(Transformer) []tape.Layer           // what follows the head
	block     func(Transformer, blockParts) tape.Layer // nil is normed before each part
	attention func(Transformer, *layer.Attention)      // what is set besides
	mlp       func(Transformer) tape.Layer
	mixture   func(Transformer, layer.MoE) tape.Layer
	rotations func(Transformer) int // tables of rotation; nil for one
	still     bool                  // no rotary positions
	half      bool                  // half of a head rotates where nothing says how much
	headBias  bool                  // of the head
}

// decoderNames are those of the modules, "" for Llama's.
type decoderNames struct{ root, embed, blocks, last, attention, mlp, head string }

// blockParts is what a block is made of.
type blockParts struct {
	norm, dropout  tape.Layer
	attention, mlp tape.Named
}

// style is the family's, with all that it leaves to Llama's.
func (c Transformer) style() style {
	s := c.Family.OrLlama().style
	n := &s.names
	n.root, n.embed, n.blocks, n.last = setting.Or(n.root, "model"), setting.Or(n.embed, "embed_tokens"), setting.Or(n.blocks, "layers"), setting.Or(n.last, "norm")
	n.attention, n.mlp, n.head = setting.Or(n.attention, "self_attn"), setting.Or(n.mlp, "mlp"), setting.Or(n.head, "lm_head")
	if s.norm == nil {
		s.norm = func(c Transformer) tape.Layer { return layer.RMSNorm{Size: c.Hidden, Unfused: true} }
	}
	if s.block == nil {
		s.block = normedBefore("", "")
	}
	if s.mlp == nil {
		s.mlp = func(c Transformer) tape.Layer {
			return layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Bias: c.Bias}
		}
	}
	return s
}

// dropped is a part and the dropout after it, which has no name where it does nothing.
func dropped(name string, part tape.Named, dropout tape.Layer) tape.Sequential {
	if name == "" {
		return tape.Sequential{part}
	}
	return tape.Sequential{part, tape.Named{Name: name, Layer: dropout}}
}

// normedBefore is x + part(norm(x)) for attention and MLP, which dropouts of these names follow.
func normedBefore(afterAttention, afterMLP string) func(Transformer, blockParts) tape.Layer {
	return normedBeforeAs("input_layernorm", "post_attention_layernorm", afterAttention, afterMLP)
}

func normedBeforeAs(first, second, afterAttention, afterMLP string) func(Transformer, blockParts) tape.Layer {
	return func(_ Transformer, b blockParts) tape.Layer {
		return DecoderBlock{tape.Sequential{
			tape.Skip(append(tape.Sequential{tape.Named{Name: first, Layer: b.norm}}, dropped(afterAttention, b.attention, b.dropout)...)...),
			tape.Skip(append(tape.Sequential{tape.Named{Name: second, Layer: b.norm}}, dropped(afterMLP, b.mlp, b.dropout)...)...),
		}}
	}
}

// normedAround has norms of these names before and after attention and MLP.
func normedAround(before, after, beforeMLP, afterMLP string) func(Transformer, blockParts) tape.Layer {
	return func(_ Transformer, b blockParts) tape.Layer {
		return DecoderBlock{tape.Sequential{
			tape.Skip(tape.Named{Name: before, Layer: b.norm}, b.attention, tape.Named{Name: after, Layer: b.norm}),
			tape.Skip(tape.Named{Name: beforeMLP, Layer: b.norm}, b.mlp, tape.Named{Name: afterMLP, Layer: b.norm}),
		}}
	}
}

// normedAfter is x + norm(part(x)).
func normedAfter(_ Transformer, b blockParts) tape.Layer {
	return DecoderBlock{tape.Sequential{
		tape.Skip(b.attention, tape.Named{Name: "post_attention_layernorm", Layer: b.norm}),
		tape.Skip(b.mlp, tape.Named{Name: "post_feedforward_layernorm", Layer: b.norm}),
	}}
}

// sideBySide has attention and MLP in parallel, which read the same norm or each its
// own, and dropouts of these names after them.
func sideBySide(afterAttention, afterMLP string, norms ...string) func(Transformer, blockParts) tape.Layer {
	return func(_ Transformer, b blockParts) tape.Layer {
		p := parallelBlock{attention: dropped(afterAttention, b.attention, b.dropout), mlp: dropped(afterMLP, b.mlp, b.dropout)}
		for _, name := range norms {
			p.norms = append(p.norms, tape.Named{Name: name, Layer: b.norm})
		}
		return p
	}
}

// parallelBlock adds attention and MLP, which read the same norm or each its own, to x.
type parallelBlock struct {
	norms          []tape.Named
	attention, mlp tape.Sequential
}

// Kind names the row.
func (parallelBlock) Kind() string { return "DecoderBlock" }

func (b parallelBlock) Declare(d *tape.Declaration) {
	for _, norm := range b.norms {
		norm.Declare(d)
	}
	b.attention.Declare(d)
	b.mlp.Declare(d)
}

func (b parallelBlock) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	y, err := b.norms[0].Forward(t, x)
	if err != nil {
		return tape.Tensor{}, err
	}
	z := y
	if len(b.norms) > 1 {
		if z, err = b.norms[1].Forward(t, x); err != nil {
			return tape.Tensor{}, err
		}
	}
	if y, err = b.attention.Forward(t, y); err == nil {
		z, err = b.mlp.Forward(t, z)
	}
	if err == nil {
		y, err = tape.Add(t, y, z)
	}
	if err != nil {
		return tape.Tensor{}, err
	}
	return tape.Add(t, y, x)
}
