package estimate

// style is how a family puts a decoder together, where it is not as Llama does. Its functions
// see the Transformer's numbers.
type style struct {
	names     decoderNames
	norm      func(Transformer) Layer
	embedded  func(Transformer) []Layer           // what follows the embedding of tokens
	last      func(Transformer) []Layer           // what follows the blocks, in place of the norm
	after     func(Transformer) []Layer           // what follows the head
	block     func(Transformer, blockParts) Layer // nil is normed before each part
	attention func(Transformer, *Attention)       // what is set besides
	mlp       func(Transformer) Layer
	mixture   func(Transformer, MoE) Layer
	still     bool // no rotary positions
}

// decoderNames are those of the modules, "" for Llama's.
type decoderNames struct{ root, embed, blocks, last, attention, mlp, head string }

// blockParts is what a block is made of.
type blockParts struct {
	norm, dropout  Layer
	attention, mlp Named
}

// style is the family's, with all that it leaves to Llama's.
func (c Transformer) style() style {
	s := styles[c.Family]
	n := &s.names
	n.root, n.embed, n.blocks, n.last = or(n.root, "model"), or(n.embed, "embed_tokens"), or(n.blocks, "layers"), or(n.last, "norm")
	n.attention, n.mlp, n.head = or(n.attention, "self_attn"), or(n.mlp, "mlp"), or(n.head, "lm_head")
	if s.norm == nil {
		s.norm = func(c Transformer) Layer { return RMSNorm{Size: c.Hidden, Unfused: true} }
	}
	if s.block == nil {
		s.block = normedBefore("", "")
	}
	if s.mlp == nil {
		s.mlp = func(c Transformer) Layer {
			return GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Bias: c.Bias}
		}
	}
	return s
}

// dropped is a part and the dropout after it, which has no name where it does nothing.
func dropped(name string, part Named, dropout Layer) Sequential {
	if name == "" {
		return Sequential{part}
	}
	return Sequential{part, Named{name, dropout}}
}

// normedBefore is x + part(norm(x)) for attention and MLP, which dropouts of these names follow.
func normedBefore(afterAttention, afterMLP string) func(Transformer, blockParts) Layer {
	return normedBeforeAs("input_layernorm", "post_attention_layernorm", afterAttention, afterMLP)
}

func normedBeforeAs(first, second, afterAttention, afterMLP string) func(Transformer, blockParts) Layer {
	return func(_ Transformer, b blockParts) Layer {
		return decoderBlock{Sequential{
			residual(append(Sequential{Named{first, b.norm}}, dropped(afterAttention, b.attention, b.dropout)...)...),
			residual(append(Sequential{Named{second, b.norm}}, dropped(afterMLP, b.mlp, b.dropout)...)...),
		}}
	}
}

// normedAround has norms of these names before and after attention and MLP.
func normedAround(before, after, beforeMLP, afterMLP string) func(Transformer, blockParts) Layer {
	return func(_ Transformer, b blockParts) Layer {
		return decoderBlock{Sequential{
			residual(Named{before, b.norm}, b.attention, Named{after, b.norm}),
			residual(Named{beforeMLP, b.norm}, b.mlp, Named{afterMLP, b.norm}),
		}}
	}
}

// normedAfter is x + norm(part(x)).
func normedAfter(_ Transformer, b blockParts) Layer {
	return decoderBlock{Sequential{
		residual(b.attention, Named{"post_attention_layernorm", b.norm}),
		residual(b.mlp, Named{"post_feedforward_layernorm", b.norm}),
	}}
}

// sideBySide has attention and MLP in parallel, which read the same norm or each its
// own, and dropouts of these names after them.
func sideBySide(afterAttention, afterMLP string, norms ...string) func(Transformer, blockParts) Layer {
	return func(_ Transformer, b blockParts) Layer {
		p := parallelBlock{attention: dropped(afterAttention, b.attention, b.dropout), mlp: dropped(afterMLP, b.mlp, b.dropout)}
		for _, name := range norms {
			p.norms = append(p.norms, Named{name, b.norm})
		}
		return p
	}
}

// parallelBlock adds attention and MLP, which read the same norm or each its own, to x.
type parallelBlock struct {
	norms          []Named
	attention, mlp Sequential
}

// Kind names the row.
func (parallelBlock) Kind() string { return "DecoderBlock" }

// Declare implements Layer.
func (b parallelBlock) Declare(d *Declaration) {
	for _, norm := range b.norms {
		norm.Declare(d)
	}
	b.attention.Declare(d)
	b.mlp.Declare(d)
}

// Forward implements Layer.
func (b parallelBlock) Forward(t *Tape, x Tensor) (Tensor, error) {
	y, err := b.norms[0].Forward(t, x)
	if err != nil {
		return Tensor{}, err
	}
	z := y
	if len(b.norms) > 1 {
		if z, err = b.norms[1].Forward(t, x); err != nil {
			return Tensor{}, err
		}
	}
	if y, err = b.attention.Forward(t, y); err == nil {
		z, err = b.mlp.Forward(t, z)
	}
	if err == nil {
		y, err = add(t, y, z)
	}
	if err != nil {
		return Tensor{}, err
	}
	return add(t, y, x)
}
