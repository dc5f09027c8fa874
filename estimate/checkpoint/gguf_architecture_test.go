package checkpoint

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// llamaKeys are the metadata of a small Llama, with some of them replaced, or taken
// out where the replacement is nil.
func llamaKeys(replace map[string]any) []ggufKey {
	keys := []ggufKey{
		{"general.architecture", "llama"},
		{"llama.embedding_length", uint32(64)},
		{"llama.block_count", uint32(2)},
		{"llama.feed_forward_length", uint32(96)},
		{"llama.attention.head_count", uint32(4)},
		{"llama.attention.head_count_kv", uint32(2)},
		{"llama.context_length", uint32(128)},
		{"tokenizer.ggml.tokens", []string{"a", "b", "c", "d"}},
	}
	var kept []ggufKey
	for _, key := range keys {
		value, replaced := replace[key.name]
		if replaced {
			key.value = value
		}
		if key.value != nil {
			kept = append(kept, key)
		}
	}
	return kept
}

// llamaGGUF is a small Llama with its tensors.
func llamaGGUF() []byte {
	return smallGGUF(llamaKeys(nil), "attn_norm 64", "attn_q 64 64", "attn_k 64 32", "attn_v 64 32", "attn_output 64 64",
		"ffn_norm 64", "ffn_gate 64 96", "ffn_up 64 96", "ffn_down 96 64")
}

// smallGGUF has two blocks of the tensors, each given by its name and dimensions, beside an
// embedding of four tokens and the last norm.
func smallGGUF(keys []ggufKey, block ...string) []byte {
	var tensors []ggufTensor
	offset := uint64(0)
	add := func(name string, dims ...uint64) {
		tensors = append(tensors, ggufTensor{name, dims, 1, offset})
		size := uint64(2)
		for _, dim := range dims {
			size *= dim
		}
		offset += (size + 31) &^ 31
	}
	add("token_embd.weight", 64, 4)
	for i := range 2 {
		for _, tensor := range block {
			fields := strings.Fields(tensor)
			var dims []uint64
			for _, field := range fields[1:] {
				dim, _ := strconv.ParseUint(field, 10, 64)
				dims = append(dims, dim)
			}
			name := fields[0]
			if !strings.Contains(name, ".") {
				name += ".weight"
			}
			once, outside := strings.CutPrefix(name, "/")
			switch {
			case !outside:
				add(fmt.Sprintf("blk.%d.%s", i, name), dims...)
			case i == 0:
				add(once, dims...)
			}
		}
	}
	if !slices.Contains(block, noLastNorm) {
		add("output_norm.weight", 64)
	}
	return ggufBytes(keys, tensors...)
}

// noLastNorm is a tensor of no elements worth counting, which stands for the lack of the last norm.
const noLastNorm = "/rope_freqs.weight 0"

// withBias are tensors and their biases, as long as the tensors' last dimension.
func withBias(tensors ...string) []string {
	var both []string
	for _, tensor := range tensors {
		fields := strings.Fields(tensor)
		both = append(both, tensor, strings.TrimSuffix(fields[0], ".weight")+".bias "+fields[len(fields)-1])
	}
	return both
}

// The tensors are those that gguf-py 0.19 lists for each architecture (constants.py:
// MODEL_TENSORS), in small: the layers have as many parameters.
func TestGGUFFamilies(t *testing.T) {
	attention := []string{"attn_q 64 64", "attn_k 64 32", "attn_v 64 32", "attn_output 64 64"}
	headNorms := []string{"attn_q_norm 16", "attn_k_norm 16"}
	mlp := []string{"ffn_gate 64 96", "ffn_up 64 96", "ffn_down 96 64"}
	experts := []string{"ffn_gate_inp 64 4", "ffn_gate_exps 64 24 4", "ffn_up_exps 64 24 4", "ffn_down_exps 24 64 4"}
	before := []string{"attn_norm 64", "ffn_norm 64"}
	packed := []string{"attn_qkv 64 128", "attn_output 64 64"}
	plain := []string{"ffn_up 64 96", "ffn_down 96 64"}
	lastBias := "/output_norm.bias 64"
	shared := []string{"ffn_gate_shexp 64 48", "ffn_up_shexp 64 48", "ffn_down_shexp 48 64"}
	qkvBias := []string{"attn_q.bias 64", "attn_k.bias 32", "attn_v.bias 32"}
	const usual = 2 * 2 * 32 * 100
	after := []string{"post_attention_norm 64", "post_ffw_norm 64"}
	indexed := []string{"attn_q_a 64 24", "attn_q_a_norm 24", "attn_q_b 24 64", "attn_kv_a_mqa 64 40", "attn_kv_a_norm 32", "attn_k_b 8 32 4", "attn_v_b 32 16 4", "attn_output 64 64",
		"indexer.k_norm.weight 16", "indexer.k_norm.bias 16", "indexer.proj.weight 64 2", "indexer.attn_k.weight 64 16", "indexer.attn_q_b.weight 24 32"}
	indexKeys := map[string]uint32{"attention.kv_lora_rank": 32, "attention.q_lora_rank": 24, "rope.dimension_count": 8, "attention.key_length": 40, "attention.value_length": 32, "attention.key_length_mla": 16,
		"attention.value_length_mla": 16, "expert_shared_count": 2, "expert_gating_func": 2, "attention.indexer.head_count": 2, "attention.indexer.key_length": 16, "attention.indexer.top_k": 8}
	for family, test := range map[string]struct {
		tensors []string
		cache   int // elements of 100 tokens
		keys    map[string]uint32
	}{
		"llama":    {slices.Concat(before, attention, mlp), usual, nil},
		"qwen3":    {slices.Concat(before, attention, headNorms, mlp), usual, nil},
		"qwen3moe": {slices.Concat(before, attention, headNorms, experts), usual, nil},
		"olmo2":    {slices.Concat(after, attention, []string{"attn_q_norm 64", "attn_k_norm 32"}, mlp), 2 * 2 * 32 * 10, nil},
		"gemma2":   {slices.Concat(before, after, attention, mlp), 2 * 32 * (100 + 10), nil},
		"gemma3":   {slices.Concat(before, after, attention, headNorms, mlp), 2 * 2 * 32 * 10, nil},
		"gemma3n": {slices.Concat(before, after, attention, headNorms, mlp, []string{"inp_gate 64 8", "proj 8 64", "post_norm 64", "altup_correct_coef 4 4", "altup_correct_scale 64",
			"altup_predict_coef 4 16", "altup_router 64 4", "altup_router_norm 64", "laurel_l 64 6", "laurel_r 6 64", "laurel_post_norm 64",
			"/altup_proj 64 64 3", "/altup_unembd_proj 64 64 3", "/per_layer_token_embd 16 3", "/per_layer_model_proj 64 16", "/per_layer_proj_norm 8"}),
			2 * 2 * 32 * 10, map[string]uint32{"altup.num_inputs": 4, "embedding_length_per_layer_input": 8}},
		"gpt-oss": {slices.Concat([]string{"attn_norm 64", "post_attention_norm 64", "attn_sinks.weight 4"}, attention, experts,
			[]string{"attn_q.bias 64", "attn_k.bias 32", "attn_v.bias 32", "attn_output.bias 64", "ffn_gate_inp.bias 4",
				"ffn_gate_exps.bias 24 4", "ffn_up_exps.bias 24 4", "ffn_down_exps.bias 64 4"}), 2 * 32 * (100 + 10), nil},
		"arcee":         {slices.Concat(before, attention, plain), usual, nil},
		"ernie4_5":      {slices.Concat(before, attention, mlp), usual, nil},
		"exaone4":       {slices.Concat(after, attention, headNorms, mlp), 2 * 2 * 32 * 10, nil},
		"granitemoe":    {slices.Concat(before, attention, experts), usual, nil},
		"hunyuan-dense": {slices.Concat(before, attention, headNorms, mlp), usual, nil},
		"hunyuan-moe": {slices.Concat(before, attention, headNorms, []string{"ffn_gate_inp 64 4", "ffn_gate_exps 64 96 4", "ffn_up_exps 64 96 4", "ffn_down_exps 96 64 4"}, shared), usual,
			map[string]uint32{"expert_shared_feed_forward_length": 48}},
		"mistral3": {slices.Concat(before, attention, mlp), usual, nil},
		"olmoe":    {slices.Concat(before, attention, []string{"attn_q_norm 64", "attn_k_norm 32"}, experts), usual, nil},
		"seed_oss": {slices.Concat([]string{"attn_norm 64", "post_attention_norm 64"}, attention, qkvBias, mlp), usual, nil},

		"granite":    {slices.Concat(before, attention, mlp), usual, nil},
		"smollm3":    {slices.Concat(before, attention, mlp), usual, nil},
		"command-r":  {slices.Concat([]string{"attn_norm 64"}, attention, mlp), usual, nil},
		"cohere2":    {slices.Concat([]string{"attn_norm 64"}, attention, mlp), 2 * 2 * 32 * 10, nil},
		"olmo":       {slices.Concat([]string{noLastNorm}, attention, mlp), usual, nil},
		"glm4":       {slices.Concat(before, after, attention, qkvBias, []string{"ffn_up 64 192", "ffn_down 96 64"}), usual, nil},
		"chatglm":    {slices.Concat(before, packed, []string{"attn_qkv.bias 128", "ffn_up 64 192", "ffn_down 96 64"}), usual, nil},
		"stablelm":   {slices.Concat(withBias(before...), attention, qkvBias, mlp, []string{lastBias}), usual, nil},
		"nemotron":   {slices.Concat(withBias(before...), attention, plain, []string{lastBias}), usual, nil},
		"falcon":     {slices.Concat(withBias("attn_norm 64", "attn_norm_2 64"), packed, plain, []string{lastBias}), usual, nil},
		"starcoder2": {slices.Concat(withBias(before...), withBias(attention...), withBias(plain...), []string{lastBias}), usual, nil},
		"gptneox":    {slices.Concat(withBias(before...), withBias(packed...), withBias(plain...), []string{lastBias}), usual, nil},
		"bloom": {slices.Concat(withBias(before...), withBias(packed...), withBias(plain...), []string{lastBias, "/token_embd_norm.weight 64", "/token_embd_norm.bias 64"}),
			usual, nil},
		"starcoder": {slices.Concat(withBias(before...), withBias(packed...), withBias(plain...), []string{lastBias, "/position_embd.weight 64 128"}), usual, nil},
		"phimoe":    {slices.Concat(withBias(before...), withBias(attention...), experts, []string{lastBias, "/output.bias 4"}), usual, nil},
		"qwen2moe": {slices.Concat(before, attention, qkvBias, experts, shared, []string{"ffn_gate_inp_shexp 64"}), usual,
			map[string]uint32{"expert_shared_feed_forward_length": 48}},
		"llama4": {slices.Concat(before, attention, experts, []string{"ffn_gate_shexp 64 24", "ffn_up_shexp 64 24", "ffn_down_shexp 24 64"}), usual,
			map[string]uint32{"interleave_moe_layer_step": 1}},
		"deepseek2": {slices.Concat(before, []string{"attn_q 64 64", "attn_kv_a_mqa 64 40", "attn_kv_a_norm 32", "attn_kv_b 32 96", "attn_output 64 64"}, experts, shared),
			2 * 4 * (16 + 16) * 100, map[string]uint32{"attention.kv_lora_rank": 32, "rope.dimension_count": 8, "attention.key_length": 16, "attention.value_length": 16, "expert_shared_count": 2}},
		"deepseek32": {slices.Concat(before, indexed, experts, shared), 2 * (40 + 16) * 100, indexKeys},
		"glm-dsa":    {slices.Concat(before, indexed, experts, shared), 2 * (40 + 16) * 100, indexKeys},
		"qwen35": {slices.Concat([]string{"attn_norm 64", "post_attention_norm 64", "attn_qkv 64 160", "attn_gate 64 96", "ssm_conv1d 4 160", "ssm_dt.bias 6", "ssm_a 6", "ssm_beta 64 6", "ssm_alpha 64 6",
			"ssm_norm 16", "ssm_out 96 64"}, mlp), 2 * (160*4 + 2*6*16*16), map[string]uint32{"ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 2, "ssm.time_step_rank": 6, "ssm.inner_size": 96}},
		"mamba": {[]string{"attn_norm 64", "ssm_in 64 256", "ssm_conv1d 4 128", "ssm_conv1d.bias 128", "ssm_x 128 36", "ssm_dt 4 128", "ssm_dt.bias 128",
			"ssm_a 16 128", "ssm_d 128", "ssm_out 128 64"}, 2 * 128 * (2*16 + 4),
			map[string]uint32{"ssm.inner_size": 128, "ssm.state_size": 16, "ssm.time_step_rank": 4, "ssm.conv_kernel": 4}},
	} {
		t.Run(family, func(t *testing.T) {
			keys := llamaKeys(map[string]any{"general.architecture": family})
			for i := range keys {
				keys[i].name = strings.Replace(keys[i].name, "llama.", family+".", 1)
			}
			keys = append(keys, ggufKey{family + ".attention.sliding_window", uint32(10)})
			if slices.Contains(test.tensors, experts[0]) {
				keys = append(keys, ggufKey{family + ".expert_count", uint32(4)}, ggufKey{family + ".expert_used_count", uint32(2)},
					ggufKey{family + ".expert_feed_forward_length", uint32(24)})
			}
			for key, value := range test.keys {
				keys = append(keys, ggufKey{family + "." + key, value})
			}
			c, err := ReadFile(writeFile(t, "small.gguf", smallGGUF(keys, test.tensors...)))
			require.NoError(t, err)
			report, err := c.Report(estimate.Tokens(1, 16))
			require.NoError(t, err)
			assert.Equal(t, c.parameters(), report.Params.Count)
			cache, err := c.Cache(1, 100)
			require.NoError(t, err)
			size, err := estimate.KVCache(cache)
			require.NoError(t, err)
			assert.EqualValues(t, 2*test.cache, size)
		})
	}
}

// checkArchitecture checks that an architecture that was read without an error can
// be built, or that Model says why not, in bounded memory.
func checkArchitecture(t *testing.T, a architecture) {
	heap := allocated(func() { _, _ = estimate.Model(layer.Public(a.Layers())) })
	if heap > 256<<20 {
		t.Fatalf("%d bytes allocated for the layers of %+v", heap, a)
	}
}

func TestGGUFTellsTheArchitecture(t *testing.T) {
	c, err := ReadFile(writeFile(t, "llama.gguf", llamaGGUF()))
	require.NoError(t, err)
	name, err := c.Architecture()
	require.NoError(t, err)
	assert.Equal(t, "llama", name)
	assert.Equal(t, family.Transformer{
		Family: family.Llama, Hidden: 64, Blocks: 2, Heads: 4, KVHeads: 2, FFN: 96, Vocab: 4, Tied: true,
	}, c.architecture.Transformer)

	report, err := c.Report(estimate.Tokens(1, 16))
	require.NoError(t, err)
	assert.Equal(t, c.parameters(), report.Params.Count)
	assert.Equal(t, c.bytes(), report.Params.Bytes)
	cache, err := c.Cache(1, 16)
	require.NoError(t, err)
	size, err := estimate.KVCache(cache)
	require.NoError(t, err)
	assert.Equal(t, alloc.Bytes(2*2*16*2*16*2), size)
}

func TestGGUFSaysWhatIsWrongWithTheArchitecture(t *testing.T) {
	for name, test := range map[string]struct {
		replace map[string]any
		want    string
	}{
		"another one":      {map[string]any{"general.architecture": "rwkv"}, `"general.architecture": "rwkv" is not a known architecture: unknown architecture`},
		"none":             {map[string]any{"general.architecture": nil}, `"general.architecture": "" is not a known architecture`},
		"a number":         {map[string]any{"general.architecture": uint8(3)}, `"general.architecture": "" is not a known architecture`},
		"no heads":         {map[string]any{"llama.attention.head_count": nil}, `metadata key "llama.attention.head_count" is missing`},
		"zero heads":       {map[string]any{"llama.attention.head_count": uint32(0)}, `"llama.attention.head_count": 0 is not a number from 1`},
		"hidden a float":   {map[string]any{"llama.embedding_length": float32(64)}, `"llama.embedding_length": is not a whole number`},
		"hidden negative":  {map[string]any{"llama.embedding_length": int32(-64)}, `"llama.embedding_length": is out of range`},
		"hidden too large": {map[string]any{"llama.embedding_length": uint64(1 << 40)}, `"llama.embedding_length": `},
		"heads by layer":   {map[string]any{"llama.attention.head_count_kv": []uint32{2, 4}}, `"llama.attention.head_count_kv": differs from layer to layer`},
		"heads do not fit": {map[string]any{"llama.attention.head_count_kv": uint32(3)}, "4 heads cannot share 3 heads of keys and values"},
		"hidden and heads": {map[string]any{"llama.embedding_length": uint32(65)}, "a hidden size of 65 does not divide into 4 heads"},
		"a million layers": {map[string]any{"llama.block_count": uint32(1 << 20)}, "1048576 blocks, more than 1024"},
		"no vocabulary":    {map[string]any{"tokenizer.ggml.tokens": nil}, "neither vocab_size nor the tokenizer's tokens"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := ReadFile(writeFile(t, "bad.gguf", ggufBytes(llamaKeys(test.replace))))
			require.NoError(t, err)
			_, err = c.Architecture()
			require.ErrorContains(t, err, test.want)
		})
	}
	same, err := ReadFile(writeFile(t, "same.gguf", ggufBytes(llamaKeys(map[string]any{"llama.attention.head_count_kv": []uint32{2, 2}}))))
	require.NoError(t, err)
	_, err = same.Architecture()
	assert.NoError(t, err)
}
