package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// normedAround returns a block with norms before and after attention and MLP.
func normedAround(b blockParts, before, after, beforeMLP, afterMLP string) tape.Layer {
	return DecoderBlock{tape.Sequential{
		tape.Skip(tape.As(before, b.norm), b.attention, tape.As(after, b.norm)),
		tape.Skip(tape.As(beforeMLP, b.norm), b.mlp, tape.As(afterMLP, b.norm)),
	}}
}

// normedAfter returns a block of x + norm(part(x)).
func normedAfter(_ Transformer, b blockParts) tape.Layer {
	return DecoderBlock{tape.Sequential{
		tape.Skip(b.attention, tape.As("post_attention_layernorm", b.norm)),
		tape.Skip(b.mlp, tape.As("post_feedforward_layernorm", b.norm)),
	}}
}

// sideBySide returns a block with attention and MLP in parallel, which read one norm or each its
// own. The dropouts after them have these names.
func sideBySide(b blockParts, afterAttention, afterMLP string, norms ...string) tape.Layer {
	p := parallelBlock{attention: dropped(afterAttention, b.attention, b.dropout), mlp: dropped(afterMLP, b.mlp, b.dropout)}
	for _, name := range norms {
		p.norms = append(p.norms, tape.As(name, b.norm))
	}
	return p
}

// parallelBlock adds attention and MLP to x. Both read one norm, or each its own.
type parallelBlock struct {
	norms          []tape.Named
	attention, mlp tape.Sequential
}

func (parallelBlock) Kind() string { return "DecoderBlock" }

func (b parallelBlock) Declare(d *tape.Declaration) {
	for _, norm := range b.norms {
		norm.Declare(d)
	}
	b.attention.Declare(d)
	b.mlp.Declare(d)
}

func (b parallelBlock) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	y := b.norms[0].Forward(t, x)
	z := y
	if len(b.norms) > 1 {
		z = b.norms[1].Forward(t, x)
	}
	y, z = b.attention.Forward(t, y), b.mlp.Forward(t, z)
	return t.Sum(t.Sum(y, z), x)
}

func layerNorm(c Transformer) tape.Layer { return layer.LayerNorm{Size: c.Hidden} }

func lateNorm(c Transformer) tape.Layer {
	return layer.RMSNorm{Size: c.Hidden, Unfused: true, Late: true}
}

func multiplied(Transformer) []tape.Layer { return []tape.Layer{tape.Inline(layer.Multiple{})} }

func dropoutAs(c Transformer, name string) []tape.Layer { return []tape.Layer{tape.As(name, c.Drop())} }

func packedMLP(c Transformer) tape.Layer {
	return layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Packed: true}
}

// plainMLP returns an MLP without a gate whose parts have these names.
func plainMLP(c Transformer, up, act, down string) tape.Layer {
	return layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, NoBias: !c.Bias, Names: &[3]string{up, act, down}}
}

// routedBy returns a mixture with this router.
func routedBy(m layer.MoE, r layer.Router) tape.Layer {
	m.Router = r
	return m
}

func packedAttention(_ Transformer, a *layer.Attention) {
	a.Packed, a.Sliced, a.Joined = true, true, true
}

func joinedAttention(c Transformer, a *layer.Attention) {
	a.Joined = a.RotaryDim != 0 && a.RotaryDim < a.Size()
}

// packedNames are the names in GPT-NeoX and its successors.
var packedNames = &layer.AttentionNames{Packed: "query_key_value", Out: "dense"}

func starcoderBlock(c Transformer, b blockParts) tape.Layer {
	return DecoderBlock{tape.Sequential{
		tape.Skip(tape.As("input_layernorm", b.norm), b.attention, tape.Inline(b.dropout)),
		tape.Skip(tape.As("post_attention_layernorm", b.norm), b.mlp, tape.Inline(b.dropout)),
	}}
}

// multipliedBlock is Llama's block with a factor on each part's output.
func multipliedBlock(_ Transformer, b blockParts) tape.Layer {
	return DecoderBlock{tape.Sequential{
		tape.Skip(tape.As("input_layernorm", b.norm), b.attention, tape.Inline(layer.Multiple{})),
		tape.Skip(tape.As("post_attention_layernorm", b.norm), b.mlp, tape.Inline(layer.Multiple{})),
	}}
}
