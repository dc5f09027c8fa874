package checkpoint

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// architecture reads the metadata.
func (g *ggufFile) architecture() (architecture, error) {
	family := g.text("general.architecture")
	transformer, ok := ggufFamilies[family]
	if !ok {
		return g.cacheAlone(family), &Error{File: g.file, Where: `metadata key "general.architecture"`,
			Reason: fmt.Sprintf("%q is not a known architecture", shorten(family)), Err: ErrUnknownArchitecture}
	}
	a := architecture{family: family, Transformer: transformer}
	if err := g.numbers(&a); err != nil {
		return architecture{}, err
	}
	if err := errors.Join(a.check(), g.fromTensors(&a)); err != nil {
		return architecture{}, &Error{File: g.file, Err: err}
	}
	return a, nil
}

// ggufNumber is a number and its key; a number that is required has no default.
type ggufNumber struct {
	to       *int
	key      string
	required bool
}

// numbers reads the sizes.
func (g *ggufFile) numbers(a *architecture) error {
	attends := a.Family != family.Mamba
	numbers := []ggufNumber{
		{&a.Hidden, "embedding_length", true},
		{&a.Blocks, "block_count", true},
		{&a.FFN, "feed_forward_length", attends},
		{&a.Heads, "attention.head_count", attends},
		{&a.KVHeads, "attention.head_count_kv", false},
		{&a.HeadSize, "attention.key_length", false},
		{&a.Experts, "expert_count", false},
		{&a.TopK, "expert_used_count", false},
		{&a.ExpertFFN, "expert_feed_forward_length", false},
		{&a.Vocab, "vocab_size", false},
	}
	switch a.Family {
	case family.GPT2, family.BERT:
		numbers = append(numbers, ggufNumber{&a.Positions, "context_length", true})
	case family.Phi, family.Phi3, family.GLM, family.GLM4, family.StableLM, family.GPTNeoX, family.Nemotron:
		numbers = append(numbers, ggufNumber{&a.RotaryDim, "rope.dimension_count", false})
	}
	if _, windowed := ggufWindows[a.family]; windowed {
		numbers = append(numbers, ggufNumber{&a.Window, "attention.sliding_window", false})
	}
	for _, n := range numbers {
		if err := g.number(a.family, n); err != nil {
			return err
		}
	}
	if every := ggufWindows[a.family]; a.Window > 0 {
		for i, kinds := 0, a.kinds(); i < len(kinds); i++ {
			if (i+1)%every != 0 {
				kinds[i] |= family.Windowed
			}
		}
	}
	if more := ggufMore[a.family]; more != nil {
		if err := more(g, a); err != nil {
			return err
		}
	}
	if a.Vocab == 0 {
		a.Vocab = int(min(g.metadata["tokenizer.ggml.tokens"].length, largestNumber))
	}
	if a.Vocab == 0 {
		return &Error{File: g.file, Where: "metadata", Reason: "neither vocab_size nor the tokenizer's tokens give the size of the vocabulary"}
	}
	return nil
}

func (g *ggufFile) number(family string, n ggufNumber) error {
	key, missing := family+"."+n.key, 0
	if n.required {
		missing = -1
	}
	value, err := g.whole(key, missing)
	if err != nil {
		return err
	}
	if value > largestNumber || value == 0 && n.required {
		return &Error{File: g.file, Where: fmt.Sprintf("metadata key %q", key),
			Reason: fmt.Sprintf("%d is not a number from 1 to %d", value, largestNumber)}
	}
	*n.to = value
	return nil
}

// fromTensors sets what the presence of tensors tells.
func (g *ggufFile) fromTensors(a *architecture) error {
	has := make(map[string]bool, len(g.tensors))
	for _, t := range g.tensors {
		has[t.Name] = true
		if t.Name == "token_types.weight" && len(t.Shape) == 2 && a.Family == family.BERT {
			a.Types = min(t.Shape[0], largestNumber)
		}
	}
	a.Tied = !has["output.weight"]
	if ggufNorms[a.Family] && has["blk.0.attn_q_norm.weight"] {
		a.QKNorm = layer.NormHeads
	}
	switch a.Family {
	case family.Falcon:
		a.TwoNorms = has["blk.0.attn_norm_2.weight"]
	case family.StableLM:
		a.Parallel = !has["blk.0.ffn_norm.weight"]
		a.QKVBias = has["blk.0.attn_q.bias"]
	case family.GLM, family.GLM4, family.SeedOSS:
		a.QKVBias = has["blk.0.attn_q.bias"] || has["blk.0.attn_qkv.bias"]
	case family.PhiMoE:
		a.Bias, a.HeadBias = has["blk.0.attn_output.bias"], has["output.bias"]
	case family.Llama, family.Gemma, family.Granite, family.Nemotron:
		return a.biases(has)
	}
	return nil
}

// ggufNorms are the families that have norms of queries and keys where there are tensors of them.
var ggufNorms = map[family.Family]bool{family.Cohere: true, family.StableLM: true}

// biases sets which projections have biases, by the tensors.
func (a *architecture) biases(has map[string]bool) error {
	a.QKVBias = has["blk.0.attn_q.bias"]
	a.Bias = has["blk.0.attn_output.bias"]
	if a.Experts == 0 && a.Bias != has["blk.0.ffn_up.bias"] || a.Bias && !a.QKVBias {
		return fmt.Errorf("some projections of a block have biases and others have none: %w", ErrUnknownArchitecture)
	}
	return nil
}

// cacheAlone is what the metadata of an unknown architecture tell of its keys and values.
func (g *ggufFile) cacheAlone(family string) architecture {
	a := architecture{family: family, cache: true}
	shared := 0
	for _, n := range []ggufNumber{
		{&a.Hidden, "embedding_length", true}, {&a.Blocks, "block_count", true}, {&a.Heads, "attention.head_count", true},
		{&a.KVHeads, "attention.head_count_kv", false}, {&a.HeadSize, "attention.key_length", false},
		{&shared, "attention.shared_kv_layers", false},
	} {
		if err := g.number(family, n); err != nil {
			return architecture{family: family}
		}
	}
	if a.check() != nil || a.borrow(shared) != nil {
		return architecture{family: family}
	}
	return a
}
