package checkpoint

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// ggufFamilies has the architectures of GGUF that are known, by
// general.architecture, with what the metadata leave unsaid. "llama" is Llama, Mistral
// and Mixtral alike. Biases and the tied head are told by the tensors. The keys are
// those of docs/gguf.md in ggml-org/ggml.
var ggufFamilies = map[string]estimate.Transformer{
	"llama":    {Family: estimate.Llama},
	"qwen2":    {Family: estimate.Llama},
	"qwen3":    {Family: estimate.Llama, QKNorm: estimate.NormHeads},
	"qwen3moe": {Family: estimate.Llama, QKNorm: estimate.NormHeads, Router: estimate.RoundedRouter},
	"olmo2":    {Family: estimate.OLMo2},
	"gemma":    {Family: estimate.Gemma},
	"gemma2":   {Family: estimate.Gemma2, CappedScores: true, CappedLogits: true},
	"gemma3":   {Family: estimate.Gemma2, QKNorm: estimate.NormHeads},
	"gpt-oss":  {Family: estimate.GPTOSS},
	"phi2":     {Family: estimate.Phi},
	"phi3":     {Family: estimate.Phi3},
	"gpt2":     {Family: estimate.GPT2},
	"bert":     {Family: estimate.BERT, NoHead: true}, // the pooler is not converted
}

// ggufWindows has those whose layers attend beyond their window only every so often, as
// llama.cpp takes it (src/models).
var ggufWindows = map[string]int{"gemma2": 2, "gemma3": 6, "gpt-oss": 2}

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
	numbers := []ggufNumber{
		{&a.Hidden, "embedding_length", true},
		{&a.Blocks, "block_count", true},
		{&a.FFN, "feed_forward_length", true},
		{&a.Heads, "attention.head_count", true},
		{&a.KVHeads, "attention.head_count_kv", false},
		{&a.HeadSize, "attention.key_length", false},
		{&a.Experts, "expert_count", false},
		{&a.TopK, "expert_used_count", false},
		{&a.ExpertFFN, "expert_feed_forward_length", false},
		{&a.Vocab, "vocab_size", false},
	}
	switch a.Family {
	case estimate.GPT2, estimate.BERT:
		numbers = append(numbers, ggufNumber{&a.Positions, "context_length", true})
	case estimate.Phi, estimate.Phi3:
		numbers = append(numbers, ggufNumber{&a.RotaryDim, "rope.dimension_count", false})
	}
	if ggufWindows[a.family] > 0 {
		numbers = append(numbers, ggufNumber{&a.Window, "attention.sliding_window", false})
	}
	for _, n := range numbers {
		if err := g.number(a.family, n); err != nil {
			return err
		}
	}
	if a.Window > 0 {
		a.FullBlocks = a.Blocks / ggufWindows[a.family]
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
		if t.Name == "token_types.weight" && len(t.Shape) == 2 && a.Family == estimate.BERT {
			a.Types = min(t.Shape[0], largestNumber)
		}
	}
	a.Tied = !has["output.weight"]
	if a.Family != estimate.Llama && a.Family != estimate.Gemma {
		return nil
	}
	a.QKVBias = has["blk.0.attn_q.bias"]
	a.Bias = has["blk.0.attn_output.bias"]
	if a.Bias != has["blk.0.ffn_up.bias"] || a.Bias && !a.QKVBias {
		return fmt.Errorf("some projections of a block have biases and others have none: %w", ErrUnknownArchitecture)
	}
	return nil
}

// cacheAlone is what the metadata of an unknown architecture tell of its keys and values.
func (g *ggufFile) cacheAlone(family string) architecture {
	a := architecture{family: family, cache: true}
	for _, n := range []ggufNumber{
		{&a.Hidden, "embedding_length", true}, {&a.Blocks, "block_count", true}, {&a.Heads, "attention.head_count", true},
		{&a.KVHeads, "attention.head_count_kv", false}, {&a.HeadSize, "attention.key_length", false},
	} {
		if err := g.number(family, n); err != nil {
			return architecture{}
		}
	}
	if a.check() != nil {
		return architecture{}
	}
	return a
}
