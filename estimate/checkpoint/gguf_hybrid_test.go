package checkpoint

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/llamacpp"
)

// blocksGGUF has the tensors of each block, each given by its name and dimensions, and those outside of them.
func blocksGGUF(keys []ggufKey, outside string, blocks ...string) []byte {
	var tensors []ggufTensor
	offset := uint64(0)
	add := func(prefix, list string) {
		for tensor := range strings.SplitSeq(list, ",") {
			fields := strings.Fields(tensor)
			name, size, dims := prefix+fields[0], uint64(2), []uint64(nil)
			if !strings.Contains(fields[0], ".") {
				name += ".weight"
			}
			for _, field := range fields[1:] {
				dim, _ := strconv.ParseUint(field, 10, 64)
				dims, size = append(dims, dim), size*dim
			}
			tensors = append(tensors, ggufTensor{name, dims, 1, offset})
			offset += (size + 31) &^ 31
		}
	}
	add("", outside)
	for i, block := range blocks {
		add(fmt.Sprintf("blk.%d.", i), block)
	}
	return ggufBytes(keys, tensors...)
}

// The keys and the tensors are those that llama.cpp's converter writes of a config.json (conversion/mamba.py, granite.py, jamba.py,
// gemma.py and lfm2.py), in small: both files give the same model.
func TestGGUFEqualsTheConfig(t *testing.T) {
	const attention = "attn_norm 64,attn_q 64 64,attn_k 64 32,attn_v 64 32,attn_output 64 64,ffn_norm 64"
	const headNorms = ",attn_q_norm 16,attn_k_norm 16"
	const mlp = ",ffn_gate 64 96,ffn_up 64 96,ffn_down 96 64"
	const experts = ",ffn_gate_inp 64 4,ffn_gate_exps 64 96 4,ffn_up_exps 64 96 4,ffn_down_exps 96 64 4"
	const shared = ",ffn_gate_shexp 64 48,ffn_up_shexp 64 48,ffn_down_shexp 48 64"
	const mamba2 = "attn_norm 64,ssm_in 64 296,ssm_conv1d 4 160,ssm_conv1d.bias 160,ssm_dt.bias 8,ssm_a 1 8,ssm_d 1 8,ssm_norm 64 2,ssm_out 128 64"
	const mamba = "attn_norm 64,ffn_norm 64,ssm_in 64 256,ssm_conv1d 4 128,ssm_conv1d.bias 128,ssm_x 128 36,ssm_dt 4 128,ssm_dt.bias 128,ssm_a 16 128,ssm_d 128,ssm_out 128 64," +
		"ssm_dt_norm 4,ssm_b_norm 16,ssm_c_norm 16"
	const conv = "attn_norm 64,ffn_norm 64,shortconv.conv.weight 3 64,shortconv.in_proj.weight 64 192,shortconv.out_proj.weight 64 64"
	const gemma = "attn_norm 64,post_attention_norm 64,ffn_norm 64,post_ffw_norm 64,layer_output_scale 1,attn_q_norm %d,attn_q 64 %d,attn_output %d 64,ffn_gate 64 %d,ffn_up 64 %d,ffn_down %d 64" +
		",inp_gate 64 8,proj 8 64,post_norm 64"
	const ends = "token_embd 64 4,output_norm 64"
	const sizes = `"hidden_size": 64, "intermediate_size": 96, "vocab_size": 4, "num_attention_heads": 4, "num_key_value_heads": 2`
	usual := []ggufKey{{"embedding_length", uint32(64)}, {"feed_forward_length", uint32(96)}, {"attention.head_count", uint32(4)}, {"attention.head_count_kv", []uint32{0, 2, 0}}, {"block_count", uint32(3)}}
	ssm := []ggufKey{{"ssm.inner_size", uint32(128)}, {"ssm.state_size", uint32(8)}, {"ssm.time_step_rank", uint32(8)}, {"ssm.group_count", uint32(2)}, {"ssm.conv_kernel", uint32(4)}}
	gemmaBlock := func(head, ffn, keys int) string {
		s := fmt.Sprintf(gemma, head, 4*head, 4*head, ffn, ffn, ffn)
		if keys > 0 {
			s += fmt.Sprintf(",attn_k_norm %d,attn_k 64 %d", head, keys)
		}
		return s
	}
	const routed = ",ffn_gate_inp 64 4,ffn_gate_inp.scale 64,ffn_gate_up_exps 64 48 4,ffn_down_exps 24 64 4,ffn_down_exps.scale 4,pre_ffw_norm_2 64,post_ffw_norm_1 64,post_ffw_norm_2 64"
	without := func(block string) string {
		return strings.Replace(block, ",inp_gate 64 8,proj 8 64,post_norm 64", "", 1)
	}
	for name, test := range map[string]struct {
		config  string
		keys    []ggufKey
		outside string
		blocks  []string
		extra   int64 // tensors that are no parameters of transformers
	}{
		"mamba2": {`"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 4, "num_heads": 8, "head_dim": 16, "state_size": 8, "n_groups": 2, "expand": 2`,
			append([]ggufKey{{"embedding_length", uint32(64)}, {"block_count", uint32(2)}, {"feed_forward_length", uint32(0)}, {"attention.head_count", uint32(0)}}, ssm...), ends + ",output 64 4", []string{mamba2, mamba2}, 0},
		"granitehybrid": {`"model_type": "granitemoehybrid", "architectures": ["GraniteMoeHybridForCausalLM"], ` + sizes + `, "num_hidden_layers": 3, "shared_intermediate_size": 48, "num_local_experts": 4, "num_experts_per_tok": 2, "layer_types": ["mamba", "attention", "mamba"],
			"mamba_n_heads": 8, "mamba_d_state": 8, "mamba_n_groups": 2, "tie_word_embeddings": true`,
			append(append(ssm, usual...), ggufKey{"expert_count", uint32(4)}, ggufKey{"expert_used_count", uint32(2)}, ggufKey{"expert_shared_feed_forward_length", uint32(48)}, ggufKey{"rope.scaling.finetuned", false}),
			ends, []string{mamba2 + ",ffn_norm 64" + experts + shared, attention + experts + shared, mamba2 + ",ffn_norm 64" + experts + shared}, 0},
		"granitehybrid of one MLP": {`"model_type": "granitemoehybrid", "architectures": ["GraniteMoeHybridForCausalLM"], ` + sizes + `, "num_hidden_layers": 3, "shared_intermediate_size": 96, "num_local_experts": 0, "layer_types": ["mamba", "attention", "mamba"],
			"mamba_n_heads": 8, "mamba_d_state": 8, "mamba_n_groups": 2, "tie_word_embeddings": true`,
			append(append(ssm, usual...), ggufKey{"rope.scaling.finetuned", false}), ends, []string{mamba2 + ",ffn_norm 64" + mlp, attention + mlp, mamba2 + ",ffn_norm 64" + mlp}, 0},
		"jamba": {`"model_type": "jamba", "architectures": ["JambaForCausalLM"], ` + sizes + `, "num_hidden_layers": 3, "num_experts": 4, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1, "attn_layer_period": 3, "attn_layer_offset": 1,
			"mamba_dt_rank": 4, "tie_word_embeddings": true`,
			append([]ggufKey{{"ssm.inner_size", uint32(128)}, {"ssm.state_size", uint32(16)}, {"ssm.time_step_rank", uint32(4)}, {"ssm.conv_kernel", uint32(4)}, {"expert_count", uint32(4)}, {"expert_used_count", uint32(2)}}, usual...),
			ends, []string{mamba + mlp, attention + experts, mamba + mlp}, 0},
		"lfm2": {`"model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"], ` + sizes + `, "num_hidden_layers": 3, "block_auto_adjust_ff_dim": false, "layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3`,
			append([]ggufKey{{"shortconv.l_cache", uint32(3)}}, usual...), "token_embd 64 4,token_embd_norm 64", []string{conv + mlp, attention + headNorms + mlp, conv + mlp}, 0},
		"gemma4": {`"model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"], ` + sizes + `, "num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": true, "use_double_wide_mlp": true,
			"sliding_window": 10, "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"], "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 4,
			"final_logit_softcapping": 30, "enable_moe_block": false`,
			[]ggufKey{{"embedding_length", uint32(64)}, {"block_count", uint32(4)}, {"attention.head_count", uint32(4)}, {"attention.head_count_kv", []uint32{2, 1, 2, 1}}, {"feed_forward_length", []uint32{96, 96, 192, 192}},
				{"attention.key_length", uint32(32)}, {"attention.value_length", uint32(32)}, {"attention.key_length_swa", uint32(16)}, {"attention.value_length_swa", uint32(16)},
				{"attention.sliding_window", uint32(10)}, {"attention.sliding_window_pattern", []bool{true, false, true, false}}, {"attention.shared_kv_layers", uint32(2)}, {"embedding_length_per_layer_input", uint32(8)}},
			ends + ",rope_freqs 16,per_layer_token_embd 32 4,per_layer_model_proj 64 32,per_layer_proj_norm 8",
			[]string{gemmaBlock(16, 96, 32) + ",attn_v 64 32", gemmaBlock(32, 96, 32), gemmaBlock(16, 192, 0), gemmaBlock(32, 192, 0)}, 16 + 4},
		"gemma4 of experts": {`"model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"], ` + sizes + `, "num_hidden_layers": 2, "head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1,
			"attention_k_eq_v": true, "sliding_window": 10, "layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "final_logit_softcapping": 30,
			"enable_moe_block": true, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24`,
			[]ggufKey{{"embedding_length", uint32(64)}, {"block_count", uint32(2)}, {"attention.head_count", uint32(4)}, {"attention.head_count_kv", []uint32{2, 1}}, {"feed_forward_length", uint32(96)},
				{"attention.key_length", uint32(32)}, {"attention.key_length_swa", uint32(16)}, {"attention.sliding_window", uint32(10)}, {"attention.sliding_window_pattern", []bool{true, false}},
				{"attention.shared_kv_layers", uint32(0)}, {"embedding_length_per_layer_input", uint32(0)},
				{"expert_count", uint32(4)}, {"expert_used_count", uint32(2)}, {"expert_feed_forward_length", uint32(24)}},
			ends + ",rope_freqs 16", []string{without(gemmaBlock(16, 96, 32)) + ",attn_v 64 32" + routed, without(gemmaBlock(32, 96, 32)) + routed}, 16 + 2},
	} {
		t.Run(name, func(t *testing.T) {
			architecture, _, _ := strings.Cut(name, " ")
			keys := []ggufKey{{"general.architecture", architecture}, {"tokenizer.ggml.tokens", []string{"a", "b", "c", "d"}}}
			for _, key := range test.keys {
				keys = append(keys, ggufKey{architecture + "." + key.name, key.value})
			}
			gguf, err := ReadFile(writeFile(t, "small.gguf", blocksGGUF(keys, test.outside, test.blocks...)))
			require.NoError(t, err)
			config, err := ReadFile(writeFile(t, configName, []byte("{"+test.config+"}")))
			require.NoError(t, err)
			whole := together(estimate.Tokens(2, 24), estimate.Precision(alloc.Float16))
			want, err := config.Report(whole)
			require.NoError(t, err)
			have, err := gguf.Report(whole)
			require.NoError(t, err)
			assert.Equal(t, want.Params, have.Params)
			assert.Equal(t, gguf.parameters(), have.Params.Count+test.extra)
			assert.Equal(t, want.Retained, have.Retained)
			assert.Equal(t, want.Inference.Peak.Bytes, have.Inference.Peak.Bytes)
			wanted, err := config.Cache(1, 100)
			require.NoError(t, err)
			cache, err := gguf.Cache(1, 100)
			require.NoError(t, err)
			assert.Equal(t, wanted, cache)
		})
	}
}

func TestGGUFSaysWhatIsWrongWithItsBlocks(t *testing.T) {
	usual := map[string]any{"embedding_length": uint32(64), "feed_forward_length": uint32(96), "attention.head_count": uint32(4), "attention.head_count_kv": []uint32{0, 2}, "block_count": uint32(2),
		"attention.key_length": uint32(32), "attention.key_length_swa": uint32(16), "attention.sliding_window": uint32(10), "attention.sliding_window_pattern": []bool{true, false}, "shortconv.l_cache": uint32(3)}
	for key, n := range map[string]uint32{"attention.kv_lora_rank": 32, "attention.q_lora_rank": 24, "rope.dimension_count": 8, "attention.value_length": 32, "attention.key_length_mla": 16, "attention.value_length_mla": 16,
		"attention.indexer.head_count": 2, "attention.indexer.key_length": 16, "attention.indexer.top_k": 8} {
		usual[key] = n
	}
	for what, test := range map[string]struct {
		architecture, key string
		value             any
		want              string
	}{
		"one block too few":         {"lfm2", "attention.head_count_kv", []uint32{0, 2, 0}, `"lfm2.attention.head_count_kv": 3 numbers for 2 blocks`},
		"a single number":           {"lfm2", "attention.head_count_kv", uint32(2), `"lfm2.attention.head_count_kv": 1 numbers for 2 blocks`},
		"more heads than there are": {"lfm2", "attention.head_count_kv", []uint32{0, 1 << 31}, "4 heads cannot share 2147483647 heads"},
		"no MLP":                    {"lfm2", "feed_forward_length", uint32(0), `"lfm2.feed_forward_length": 0 is not a number from 1`},
		"fractions":                 {"lfm2", "attention.head_count_kv", []float32{0, 2}, `"lfm2.attention.head_count_kv": is not a whole number`},
		"no pattern":                {"gemma4", "attention.sliding_window_pattern", nil, `"gemma4.attention.sliding_window_pattern": 0 numbers for 2 blocks`},
		"no heads with a window":    {"step35", "attention.head_count", []uint32{4, 8}, `"step35.attention.head_count_kv": 2 heads in blocks without a window and 0 in those with one`},
		"other keys with a window":  {"step35", "attention.head_count_kv", []uint32{1, 2}, "2 heads of keys and values in blocks without a window and 1 in those with one"},
		"no gates":                  {"step35", "attention.head_count_kv", []uint32{2, 2}, "attention without gates"},
		"shared indexers":           {"glm-dsa", "attention.indexer.types", []bool{true, false}, "layers that share what an indexer selects"},
		"short keys of indexers":    {"deepseek32", "attention.indexer.key_length", uint32(4), "keys shorter than what rotates"},
		"windows alone":             {"gemma4", "attention.sliding_window_pattern", []bool{true, true}, "no block attends to all tokens"},
		"all blocks borrow":         {"gemma4", "attention.shared_kv_layers", uint32(2), "2 of 2 layers use the keys and values of others"},
	} {
		t.Run(what, func(t *testing.T) {
			keys := []ggufKey{{"general.architecture", test.architecture}, {"tokenizer.ggml.tokens", []string{"a"}}}
			all := maps.Clone(usual)
			if strings.HasPrefix(test.key, "attention.indexer.") {
				all["attention.head_count_kv"] = uint32(1)
			}
			all[test.key] = test.value
			for key, value := range all {
				if value != nil {
					keys = append(keys, ggufKey{test.architecture + "." + key, value})
				}
			}
			c, err := ReadFile(writeFile(t, "bad.gguf", ggufBytes(keys)))
			require.NoError(t, err)
			_, err = c.Architecture()
			require.ErrorContains(t, err, test.want)
		})
	}
}

// together is one option that does what several do.
func together(opts ...estimate.Option) estimate.Option {
	return setting.Func(func(c *setting.Config) {
		for _, o := range opts {
			o.Apply(c)
		}
	})
}

// Blocks of Step 3.5 with a window have other numbers of query heads.
func TestGGUFWithOtherHeadsInWindows(t *testing.T) {
	const experts = ",ffn_norm 64,ffn_gate_inp 64 4,ffn_gate_exps 64 24 4,ffn_up_exps 64 24 4,ffn_down_exps 24 64 4,ffn_gate_shexp 64 24,ffn_up_shexp 64 24,ffn_down_shexp 24 64"
	const full = "attn_norm 64,attn_q 64 64,attn_k 64 32,attn_v 64 32,attn_output 64 64,attn_q_norm 16,attn_k_norm 16,attn_gate 64 4"
	const windowed = "attn_norm 64,attn_q 64 96,attn_k 64 32,attn_v 64 32,attn_output 96 64,attn_q_norm 16,attn_k_norm 16,attn_gate 64 6" + experts
	keys := []ggufKey{{"general.architecture", "step35"}, {"tokenizer.ggml.tokens", []string{"a", "b", "c", "d"}},
		{"step35.attention.head_count", []uint32{4, 6, 6, 4}}, {"step35.attention.head_count_kv", []uint32{2, 2, 2, 2}}, {"step35.attention.sliding_window_pattern", []bool{false, true, true, false}}}
	for name, n := range map[string]uint32{"embedding_length": 64, "block_count": 4, "feed_forward_length": 96, "attention.key_length": 16, "attention.sliding_window": 10, "expert_count": 4, "expert_used_count": 2,
		"expert_feed_forward_length": 24, "expert_shared_feed_forward_length": 24, "leading_dense_block_count": 1} {
		keys = append(keys, ggufKey{"step35." + name, n})
	}
	c, err := ReadFile(writeFile(t, "step.gguf", blocksGGUF(keys, "token_embd 64 4,output_norm 64,output 64 4", full+",ffn_norm 64,ffn_gate 64 96,ffn_up 64 96,ffn_down 96 64", windowed, windowed, full+experts)))
	require.NoError(t, err)
	r, err := c.Report(estimate.Tokens(1, 16))
	require.NoError(t, err)
	assert.Equal(t, c.parameters(), r.Params.Count)
	cache, err := c.Cache(1, 100)
	require.NoError(t, err)
	size, err := estimate.KVCache(cache)
	require.NoError(t, err)
	assert.EqualValues(t, 2*2*32*(2*100+2*10), size)
}

// Blocks that predict further tokens are the last ones of a file. They are none of the model's own, and attend where they run.
func TestGGUFWithBlocksThatPredict(t *testing.T) {
	const delta = "attn_norm 64,post_attention_norm 64,attn_qkv 64 160,attn_gate 64 96,ssm_conv1d 4 160,ssm_dt.bias 6,ssm_a 6,ssm_beta 64 6,ssm_alpha 64 6,ssm_norm 16,ssm_out 96 64,ffn_gate 64 96,ffn_up 64 96,ffn_down 96 64"
	const full = "attn_norm 64,post_attention_norm 64,attn_q 64 128,attn_k 64 32,attn_v 64 32,attn_output 64 64,attn_q_norm 16,attn_k_norm 16,ffn_gate 64 96,ffn_up 64 96,ffn_down 96 64"
	keys := []ggufKey{{"general.architecture", "qwen35"}, {"tokenizer.ggml.tokens", []string{"a", "b", "c", "d"}}}
	for name, n := range map[string]uint32{"embedding_length": 64, "block_count": 5, "feed_forward_length": 96, "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16, "nextn_predict_layers": 1,
		"ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 2, "ssm.time_step_rank": 6, "ssm.inner_size": 96} {
		keys = append(keys, ggufKey{"qwen35." + name, n})
	}
	c, err := ReadFile(writeFile(t, "nextn.gguf", blocksGGUF(keys, "token_embd 64 4,output_norm 64,output 64 4", delta, delta, delta, full, full+",nextn.eh_proj.weight 128 64,nextn.enorm.weight 64,nextn.hnorm.weight 64")))
	require.NoError(t, err)
	cache, err := c.Cache(1, 256)
	require.NoError(t, err)
	assert.Equal(t, 1, cache.Layers)
	served := func(by llamacpp.Server) estimate.Memory {
		o, err := c.Served(cache, by)
		require.NoError(t, err)
		r, err := c.Report(o)
		require.NoError(t, err)
		return r.Inference
	}
	plain, drafts := served(llamacpp.Server{}), served(llamacpp.Server{Drafts: 3, Predicts: true})
	const keysOfBlock, states = 2 * 2 * 32 * 256, 3 * 4 * (160*3 + 6*16*16)
	assert.EqualValues(t, keysOfBlock+states, plain.Cache)
	assert.EqualValues(t, 2*keysOfBlock+4*states, drafts.Cache)
	assert.Greater(t, drafts.Transient, plain.Transient)
}
