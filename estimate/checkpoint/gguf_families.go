package checkpoint

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// ggufFamilies has the architectures of GGUF that are known, by
// general.architecture, with what the metadata leave unsaid. "llama" is Llama, Mistral
// and Mixtral alike. Biases and the tied head are told by the tensors. The keys are
// those of docs/gguf.md in ggml-org/ggml and of gguf-py/gguf/constants.py in llama.cpp.
var ggufFamilies = map[string]family.Transformer{
	"llama":      {Family: family.Llama},
	"llama4":     {Family: family.Llama4, QKNorm: layer.NormHeads},
	"qwen2":      {Family: family.Llama},
	"qwen2moe":   {Family: family.Llama, Router: layer.RoundedRouter, SharedGate: true, UnscaledTopK: true},
	"qwen3":      {Family: family.Llama, QKNorm: layer.NormHeads},
	"qwen3moe":   {Family: family.Llama, QKNorm: layer.NormHeads, Router: layer.RoundedRouter},
	"deepseek2":  {Family: family.Llama, Router: layer.WideRouter, UnscaledTopK: true},
	"granite":    {Family: family.Granite},
	"smollm3":    {Family: family.Llama},
	"olmo":       {Family: family.OLMo},
	"olmo2":      {Family: family.OLMo2},
	"gemma":      {Family: family.Gemma},
	"gemma2":     {Family: family.Gemma2, CappedScores: true, CappedLogits: true},
	"gemma3":     {Family: family.Gemma2, QKNorm: layer.NormHeads},
	"gemma3n":    {Family: family.Gemma3n, CappedLogits: true},
	"gpt-oss":    {Family: family.GPTOSS},
	"glm4":       {Family: family.GLM4},
	"chatglm":    {Family: family.GLM},
	"command-r":  {Family: family.Cohere},
	"cohere2":    {Family: family.Cohere},
	"starcoder2": {Family: family.Starcoder2, Bias: true, Activation: layer.UseGELUTanh},
	"stablelm":   {Family: family.StableLM},
	"nemotron":   {Family: family.Nemotron},
	"phi2":       {Family: family.Phi},
	"phi3":       {Family: family.Phi3},
	"phimoe":     {Family: family.PhiMoE},
	"falcon":     {Family: family.Falcon, Parallel: true, Activation: layer.UseGELU},
	"gptneox":    {Family: family.GPTNeoX, Bias: true, Parallel: true, Activation: layer.UseGELU},
	"bloom":      {Family: family.Bloom, Bias: true},
	"gpt2":       {Family: family.GPT2},
	"starcoder":  {Family: family.GPT2, Activation: layer.UseGELUTanh}, // GPT-BigCode
	"mamba":      {Family: family.Mamba},
	"bert":       {Family: family.BERT, NoHead: true}, // the pooler is not converted

	"arcee":         {Family: family.Arcee},
	"ernie4_5":      {Family: family.Ernie},
	"exaone4":       {Family: family.EXAONE4, QKNorm: layer.NormHeads},
	"granitemoe":    {Family: family.GraniteMoE},
	"hunyuan-dense": {Family: family.HunYuan},
	"olmoe":         {Family: family.Llama, QKNorm: layer.NormAllHeads, Router: layer.RoundedRouter, UnscaledTopK: true},
	"seed_oss":      {Family: family.SeedOSS},
}

// ggufWindows has those with sliding windows, and how many layers there are for each that
// attends beyond, as llama.cpp takes it (src/models). OLMo 3 is "olmo2" with a window.
var ggufWindows = map[string]int{"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4, "olmo2": 4, "exaone4": 4}

// ggufMore reads what an architecture has besides.
var ggufMore = map[string]func(*ggufFile, *architecture) error{
	"qwen2moe":  (*ggufFile).qwen2MoE,
	"deepseek2": (*ggufFile).deepSeek2,
	"llama4":    (*ggufFile).llama4,
	"smollm3":   func(_ *ggufFile, a *architecture) error { a.unrotatedFourth(0); return nil },
	"cohere2":   (*ggufFile).cohere2,
	"exaone4":   (*ggufFile).cohere2,
	"gemma3n":   (*ggufFile).gemma3n,
	"gptneox":   (*ggufFile).gptNeoX,
	"mamba":     (*ggufFile).mamba,
}

// all reads several numbers.
func (g *ggufFile) all(family string, numbers ...ggufNumber) error {
	for _, n := range numbers {
		if err := g.number(family, n); err != nil {
			return err
		}
	}
	return nil
}

func (g *ggufFile) qwen2MoE(a *architecture) error {
	return g.all(a.family, ggufNumber{&a.SharedFFN, "expert_shared_feed_forward_length", true})
}

// deepSeek2 reads DeepSeek V2 and V3. Newer files have the sizes of heads under keys of their own, and
// those of the cache under the usual ones.
func (g *ggufFile) deepSeek2(a *architecture) error {
	var latent layer.LatentAttention
	var key, value, keyMLA, valueMLA, shared, gating int
	err := g.all(a.family,
		ggufNumber{&latent.KVRank, "attention.kv_lora_rank", true},
		ggufNumber{&latent.QueryRank, "attention.q_lora_rank", false},
		ggufNumber{&latent.RopeSize, "rope.dimension_count", true},
		ggufNumber{&key, "attention.key_length", true},
		ggufNumber{&value, "attention.value_length", true},
		ggufNumber{&keyMLA, "attention.key_length_mla", false},
		ggufNumber{&valueMLA, "attention.value_length_mla", false},
		ggufNumber{&a.DenseBlocks, "leading_dense_block_count", false},
		ggufNumber{&shared, "expert_shared_count", false},
		ggufNumber{&gating, "expert_gating_func", false},
	)
	if err != nil {
		return err
	}
	if keyMLA > 0 && valueMLA > 0 {
		key, value = keyMLA, valueMLA
	}
	latent.NopeSize, latent.ValueSize = key-latent.RopeSize, value
	if latent.NopeSize < 1 || shared > maxBlocks {
		return &Error{File: g.file, Where: "metadata", Reason: fmt.Sprintf("keys of %d elements, of which %d rotate, and %d shared experts", key, latent.RopeSize, shared)}
	}
	const sigmoid = 2
	latent.Complex = gating != sigmoid
	if gating == sigmoid {
		a.Router, a.UnscaledTopK = layer.SigmoidRouter, false
	}
	a.SharedFFN = int(min(int64(shared)*int64(a.ExpertFFN), largestNumber))
	a.Latent, a.KVHeads, a.HeadSize, a.DenseBlocks = &latent, 0, key, min(a.DenseBlocks, a.Blocks)
	return nil
}

func (g *ggufFile) llama4(a *architecture) error {
	step := 0
	if err := g.all(a.family, ggufNumber{&step, "interleave_moe_layer_step", false}); err != nil {
		return err
	}
	a.SharedFFN = a.ExpertFFN
	a.unrotatedFourth(8192) // as llama.cpp takes it
	for i := range a.Kinds {
		if a.Experts > 0 && (i+1)%max(1, step) == 0 {
			a.Kinds[i] |= family.Sparse
		}
	}
	return nil
}

// cohere2 marks the layers without a window, which do not rotate where others have one.
func (g *ggufFile) cohere2(a *architecture) error {
	for i, kind := range a.Kinds {
		if kind&family.Windowed == 0 {
			a.Kinds[i] |= family.NoRotation
		}
	}
	return nil
}

// unrotatedFourth marks each fourth layer, which does not rotate, and the others' window.
func (a *architecture) unrotatedFourth(window int) {
	a.Window = window
	for i, kinds := 0, a.kinds(); i < len(kinds); i++ {
		switch {
		case (i+1)%4 == 0:
			kinds[i] |= family.NoRotation
		case window > 0:
			kinds[i] |= family.Windowed
		}
	}
}

// gemma3n reads what only Gemma 3n has. The rank of LAuReL and the tokens that have embeddings for each block
// are told by the tensors; layers are thinned as in the published models, in which the first ten are.
func (g *ggufFile) gemma3n(a *architecture) error {
	var altUp family.AltUp
	shared := 0
	err := g.all(a.family,
		ggufNumber{&altUp.Inputs, "altup.num_inputs", true},
		ggufNumber{&altUp.Size, "embedding_length_per_layer_input", true},
		ggufNumber{&shared, "attention.shared_kv_layers", false},
	)
	if err != nil {
		return err
	}
	for _, t := range g.tensors {
		switch {
		case len(t.Shape) != 2:
		case t.Name == "blk.0.laurel_l.weight":
			altUp.Rank = min(t.Shape[0], largestNumber)
		case t.Name == "per_layer_token_embd.weight":
			altUp.Vocab = min(t.Shape[0], largestNumber)
		}
	}
	a.AltUp = &altUp
	c := hfConfig{file: g.file}
	if err := c.thinned(a); err != nil {
		return err
	}
	return a.borrow(shared)
}

func (g *ggufFile) gptNeoX(a *architecture) error {
	if v, ok := g.metadata["gptneox.use_parallel_residual"]; ok && v.kind == ggufBool && len(v.words) == 1 {
		a.Parallel = v.words[0] != 0
	}
	return nil
}

func (g *ggufFile) mamba(a *architecture) error {
	var s layer.StateSpace
	a.Mixer, a.Heads, a.KVHeads = &s, 1, 1
	return g.all(a.family,
		ggufNumber{&s.Inner, "ssm.inner_size", true},
		ggufNumber{&s.State, "ssm.state_size", true},
		ggufNumber{&s.Rank, "ssm.time_step_rank", true},
		ggufNumber{&s.Kernel, "ssm.conv_kernel", true},
	)
}
