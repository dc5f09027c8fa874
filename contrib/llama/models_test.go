//go:build !windows

package memtrack_test

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// smallModel is a model of an architecture with widths like those of real models, but few blocks and words.
type smallModel struct {
	architecture string
	keys         map[string]any // besides the usual ones; nil takes a usual one out
	outside      string         // tensors outside of blocks, besides the embedding and the last norm
	blocks       []string
}

// words is the size of the vocabulary, small enough for the blocks to decide the compute buffer.
const words = 4096

// Parts of blocks that are 1024 wide, with 16 heads of 64 and 4 of keys and values.
const (
	attention   = "attn_norm 1024, attn_q 1024 1024, attn_k 1024 256, attn_v 1024 256, attn_output 1024 1024,"
	qkvBias     = "attn_q.bias 1024, attn_k.bias 256, attn_v.bias 256,"
	headNorms   = "attn_q_norm 64, attn_k_norm 64,"
	mlp         = "ffn_norm 1024, ffn_gate 1024 2816, ffn_up 1024 2816, ffn_down 2816 1024,"
	expertsOf   = "ffn_norm 1024, ffn_gate_inp 1024 16, ffn_gate_exps 1024 512 16, ffn_up_exps 1024 512 16, ffn_down_exps 512 1024 16,"
	wideExperts = "ffn_norm 1024, ffn_gate_inp 1024 16, ffn_gate_exps 1024 2816 16, ffn_up_exps 1024 2816 16, ffn_down_exps 2816 1024 16,"
	shared      = "ffn_gate_shexp 1024 512, ffn_up_shexp 1024 512, ffn_down_shexp 512 1024,"
	chosen      = "exp_probs_b.bias 16,"
	mambaOf     = "attn_norm 1024, ssm_in 1024 4096, ssm_conv1d 4 2048, ssm_conv1d.bias 2048, ssm_x 2048 96, ssm_dt 64 2048, ssm_dt.bias 2048, ssm_a! 16 2048, ssm_d! 2048, ssm_out 2048 1024,"
	mamba2Of    = "attn_norm 1024, ssm_in 1024 4384, ssm_conv1d 4 2304, ssm_conv1d.bias 2304, ssm_dt.bias 32, ssm_a! 1 32, ssm_d! 1 32, ssm_norm 2048 1, ssm_out 2048 1024,"
)

// usualKeys are those of most models.
var usualKeys = map[string]any{
	"vocab_size": words, "context_length": 131072, "embedding_length": 1024, "feed_forward_length": 2816, "attention.head_count": 16, "attention.head_count_kv": 4,
	"attention.layer_norm_rms_epsilon": float32(1e-5), "rope.dimension_count": 64,
}

var mixtureKeys = map[string]any{"expert_count": 16, "expert_used_count": 4, "expert_feed_forward_length": 512}
var sharedKeys = with(mixtureKeys, map[string]any{"expert_shared_count": 1, "expert_shared_feed_forward_length": 512, "expert_weights_scale": float32(2.5), "expert_weights_norm": true, "expert_gating_func": 2})
var epsilon = map[string]any{"attention.layer_norm_epsilon": float32(1e-5)}
var wide = map[string]any{"attention.key_length": 128, "attention.value_length": 128, "rope.dimension_count": 128}
var mambaKeys = map[string]any{"ssm.conv_kernel": 4, "ssm.inner_size": 2048, "ssm.state_size": 16, "ssm.time_step_rank": 64}
var mamba2Keys = map[string]any{"ssm.conv_kernel": 4, "ssm.inner_size": 2048, "ssm.state_size": 128, "ssm.time_step_rank": 32, "ssm.group_count": 1}

func with(parts ...map[string]any) map[string]any {
	all := map[string]any{}
	for _, m := range parts {
		maps.Copy(all, m)
	}
	return all
}

// smallModels has a model of each architecture.
var smallModels = []smallModel{
	{"llama", nil, "output 1024 4096", slices.Repeat([]string{attention + mlp}, 4)},
	{"qwen2", nil, "", slices.Repeat([]string{attention + qkvBias + mlp}, 4)},
	{"qwen3", with(wide), "", slices.Repeat([]string{"attn_norm 1024, attn_q 1024 2048, attn_k 1024 512, attn_v 1024 512, attn_output 2048 1024, attn_q_norm 128, attn_k_norm 128," + mlp}, 4)},
	{"qwen3moe", with(mixtureKeys, wide), "output 1024 4096", slices.Repeat([]string{"attn_norm 1024, attn_q 1024 2048, attn_k 1024 512, attn_v 1024 512, attn_output 2048 1024, attn_q_norm 128, attn_k_norm 128," + expertsOf}, 4)},
	{"phi3", nil, "output 1024 4096", slices.Repeat([]string{"attn_norm 1024, attn_qkv 1024 1536, attn_output 1024 1024, ffn_norm 1024, ffn_up 1024 5632, ffn_down 2816 1024"}, 4)},
	{"gemma3", with(map[string]any{"attention.sliding_window": 512, "attention.key_length": 64, "attention.value_length": 64}), "", slices.Repeat([]string{attention + headNorms + mlp + "post_attention_norm 1024, post_ffw_norm 1024"}, 6)},
	{"gpt-oss", with(mixtureKeys, map[string]any{"attention.sliding_window": 128, "attention.key_length": 64, "attention.value_length": 64}), "output 1024 4096", slices.Repeat([]string{attention + qkvBias +
		"attn_output.bias 1024, attn_sinks 16, post_attention_norm 1024, ffn_gate_inp 1024 16, ffn_gate_inp.bias 16, ffn_gate_exps 1024 512 16, ffn_gate_exps.bias 512 16, ffn_up_exps 1024 512 16, ffn_up_exps.bias 512 16, ffn_down_exps 512 1024 16, ffn_down_exps.bias 1024 16"}, 4)},
	{"cohere2", with(map[string]any{"attention.sliding_window": 512, "logit_scale": float32(1), "attention.layer_norm_epsilon": float32(1e-5)}), "", slices.Repeat([]string{attention + strings.TrimPrefix(mlp, "ffn_norm 1024, ")}, 4)},
	{"olmo2", nil, "output 1024 4096", slices.Repeat([]string{strings.TrimPrefix(attention, "attn_norm 1024, ") + strings.TrimPrefix(mlp, "ffn_norm 1024, ") + "post_attention_norm 1024, post_ffw_norm 1024, attn_q_norm 1024, attn_k_norm 256"}, 4)},
	{"exaone4", nil, "output 1024 4096", slices.Repeat([]string{strings.TrimPrefix(attention, "attn_norm 1024, ") + strings.TrimPrefix(mlp, "ffn_norm 1024, ") + headNorms + "post_attention_norm 1024, post_ffw_norm 1024"}, 4)},
	{"llama4", with(mixtureKeys, map[string]any{"interleave_moe_layer_step": 1, "expert_used_count": 1}), "output 1024 4096", slices.Repeat([]string{attention + expertsOf + shared}, 4)},
	{"deepseek2", with(sharedKeys, map[string]any{"attention.head_count_kv": 1, "attention.kv_lora_rank": 256, "attention.q_lora_rank": 512, "attention.key_length": 288, "attention.value_length": 256, "attention.key_length_mla": 96, "attention.value_length_mla": 64,
		"rope.dimension_count": 32, "leading_dense_block_count": 1}), "output 1024 4096",
		append([]string{latent + mlp}, slices.Repeat([]string{latent + expertsOf + shared + chosen}, 3)...)},
	{"deepseek2 of early files", with(sharedKeys, map[string]any{"attention.head_count_kv": 16, "attention.kv_lora_rank": 256, "attention.q_lora_rank": 512, "attention.key_length": 96, "attention.value_length": 64,
		"rope.dimension_count": 32, "leading_dense_block_count": 1}), "output 1024 4096",
		append([]string{wholeLatent + mlp}, slices.Repeat([]string{wholeLatent + expertsOf + shared + chosen}, 3)...)},
	{"deepseek32", with(sharedKeys, map[string]any{"attention.head_count_kv": 1, "attention.kv_lora_rank": 256, "attention.q_lora_rank": 512, "attention.key_length": 288, "attention.value_length": 256, "attention.key_length_mla": 96, "attention.value_length_mla": 64,
		"rope.dimension_count": 32, "leading_dense_block_count": 1, "attention.indexer.head_count": 8, "attention.indexer.key_length": 128, "attention.indexer.top_k": 512}), "output 1024 4096",
		append([]string{latent + indexer + mlp}, slices.Repeat([]string{latent + indexer + expertsOf + shared + chosen}, 5)...)},
	{"glm-dsa", with(sharedKeys, map[string]any{"attention.head_count_kv": 1, "attention.kv_lora_rank": 256, "attention.q_lora_rank": 512, "attention.key_length": 288, "attention.value_length": 256, "attention.key_length_mla": 96, "attention.value_length_mla": 64,
		"rope.dimension_count": 32, "leading_dense_block_count": 1, "attention.indexer.head_count": 8, "attention.indexer.key_length": 128, "attention.indexer.top_k": 512, "attention.indexer.types": []bool{true, true, true, true, true, true}}), "output 1024 4096",
		append([]string{latent + indexer + mlp}, slices.Repeat([]string{latent + indexer + expertsOf + shared + chosen}, 5)...)},
	{"deepseek32 with many heads of indexers", with(sharedKeys, map[string]any{"attention.head_count_kv": 1, "attention.kv_lora_rank": 256, "attention.q_lora_rank": 512, "attention.key_length": 288, "attention.value_length": 256, "attention.key_length_mla": 96, "attention.value_length_mla": 64,
		"rope.dimension_count": 32, "leading_dense_block_count": 1, "attention.indexer.head_count": 64, "attention.indexer.key_length": 128, "attention.indexer.top_k": 2048}), "output 1024 4096",
		append([]string{latent + wideIndexer + mlp}, slices.Repeat([]string{latent + wideIndexer + expertsOf + shared + chosen}, 5)...)},
	{"step35", with(sharedKeys, map[string]any{"attention.key_length": 64, "attention.value_length": 64, "attention.sliding_window": 512, "attention.sliding_window_pattern": []bool{false, true, true, true, false, true},
		"attention.head_count": []int{16, 24, 24, 24, 16, 24}, "attention.head_count_kv": []int{4, 4, 4, 4, 4, 4}, "leading_dense_block_count": 1}), "output 1024 4096",
		[]string{attention + headNorms + "attn_gate 1024 16," + mlp, stepWindow + shared, stepWindow + shared, stepWindow + shared, attention + headNorms + "attn_gate 1024 16," + expertsOf + chosen + shared, stepWindow + shared}},
	{"glm4moe", with(sharedKeys, map[string]any{"leading_dense_block_count": 1}), "output 1024 4096",
		append([]string{attention + strings.Replace(mlp, "ffn_norm", "post_attention_norm", 1)}, slices.Repeat([]string{attention + qkvBias + strings.Replace(expertsOf, "ffn_norm", "post_attention_norm", 1) + shared + chosen}, 3)...)},
	{"minimax-m2", with(mixtureKeys, map[string]any{"expert_gating_func": 2, "feed_forward_length": 512}), "output 1024 4096", slices.Repeat([]string{attention + "attn_q_norm 1024, attn_k_norm 256," + expertsOf + chosen}, 4)},
	{"dots1", with(sharedKeys, map[string]any{"leading_dense_block_count": 1, "attention.head_count_kv": 16}), "output 1024 4096", append([]string{ungrouped + headNorms + mlp}, slices.Repeat([]string{ungrouped + headNorms + expertsOf + shared + chosen}, 3)...)},
	{"bailingmoe2", with(sharedKeys, map[string]any{"leading_dense_block_count": 1, "expert_group_count": 4, "expert_group_used_count": 2}), "output 1024 4096",
		append([]string{"attn_norm 1024, attn_qkv 1024 1536, attn_output 1024 1024," + headNorms + mlp}, slices.Repeat([]string{"attn_norm 1024, attn_qkv 1024 1536, attn_output 1024 1024," + headNorms + expertsOf + shared + chosen}, 3)...)},
	{"ernie4_5-moe", with(sharedKeys, map[string]any{"leading_dense_block_count": 1, "interleave_moe_layer_step": 1}), "output 1024 4096", append([]string{attention + mlp}, slices.Repeat([]string{attention + expertsOf + shared + chosen}, 3)...)},
	{"mamba", with(mambaKeys, map[string]any{"attention.head_count": 0, "attention.head_count_kv": nil, "feed_forward_length": 0, "rope.dimension_count": nil}), "", slices.Repeat([]string{mambaOf}, 4)},
	{"mamba2", with(mamba2Keys, map[string]any{"attention.head_count": 0, "attention.head_count_kv": nil, "feed_forward_length": 0, "rope.dimension_count": nil}), "", slices.Repeat([]string{mamba2Of}, 4)},
	{"jamba", with(mambaKeys, mixtureKeys, map[string]any{"expert_feed_forward_length": nil, "attention.head_count_kv": []int{0, 4, 0, 0}}), "", []string{jambaOf + mlp, attention + wideExperts, jambaOf + mlp, jambaOf + wideExperts}},
	{"granitehybrid", with(mamba2Keys, sharedKeys, map[string]any{"attention.head_count_kv": []int{0, 0, 4, 0}, "attention.scale": float32(1), "embedding_scale": float32(1), "logit_scale": float32(1), "residual_scale": float32(1), "rope.scaling.finetuned": false, "feed_forward_length": 512}), "",
		[]string{mamba2Of + expertsOf + shared, mamba2Of + expertsOf + shared, attention + expertsOf + shared, mamba2Of + expertsOf + shared}},
	{"nemotron_h", with(mamba2Keys, map[string]any{"attention.head_count_kv": []int{0, 0, 4, 0}, "feed_forward_length": []int{0, 2816, 0, 2816}, "attention.layer_norm_epsilon": float32(1e-5)}), "output 1024 4096",
		[]string{mamba2Of, "attn_norm 1024, ffn_up 1024 2816, ffn_down 2816 1024", attention, "attn_norm 1024, ffn_up 1024 2816, ffn_down 2816 1024"}},
	{"falcon-h1", with(mamba2Keys), "output 1024 4096", slices.Repeat([]string{attention + strings.TrimPrefix(mamba2Of, "attn_norm 1024, ") + strings.Replace(mlp, "ffn_norm", "ffn_norm!", 1)}, 4)},
	{"lfm2", with(map[string]any{"shortconv.l_cache": 3, "attention.head_count_kv": []int{0, 0, 4, 0}}), "token_embd_norm 1024", []string{conv + mlp, conv + mlp, attention + headNorms + mlp, conv + mlp}},
	{"qwen3next", with(mixtureKeys, wide, map[string]any{"rope.dimension_count": 64, "expert_shared_feed_forward_length": 512, "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 4, "ssm.time_step_rank": 8, "ssm.inner_size": 1024, "full_attention_interval": 4}), "output 1024 4096",
		append(slices.Repeat([]string{"attn_norm 1024, post_attention_norm 1024, attn_qkv 1024 2048, attn_gate 1024 1024, ssm_conv1d 4 2048, ssm_dt.bias 8, ssm_a! 8, ssm_ba 1024 16, ssm_norm 128, ssm_out 1024 1024," + sparseQwen}, 3),
			"attn_norm 1024, post_attention_norm 1024, attn_q 1024 4096, attn_k 1024 512, attn_v 1024 512, attn_output 2048 1024, attn_q_norm 128, attn_k_norm 128,"+sparseQwen)},
	{"qwen35", with(wide, map[string]any{"rope.dimension_count": 64, "rope.dimension_sections": []int{11, 11, 10, 0}, "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 4, "ssm.time_step_rank": 8, "ssm.inner_size": 1024, "full_attention_interval": 4}), "output 1024 4096",
		append(slices.Repeat([]string{"attn_norm 1024, post_attention_norm 1024, attn_qkv 1024 2048, attn_gate 1024 1024, ssm_conv1d 4 2048, ssm_dt.bias 8, ssm_a! 8, ssm_beta 1024 8, ssm_alpha 1024 8, ssm_norm 128, ssm_out 1024 1024," + plainQwen}, 3),
			"attn_norm 1024, post_attention_norm 1024, attn_q 1024 4096, attn_k 1024 512, attn_v 1024 512, attn_output 2048 1024, attn_q_norm 128, attn_k_norm 128,"+plainQwen)},
	{"gemma2", with(map[string]any{"attention.sliding_window": 512, "attention.key_length": 64, "attention.value_length": 64}), "", slices.Repeat([]string{attention + mlp + "post_attention_norm 1024, post_ffw_norm 1024"}, 4)},
	{"gemma", with(map[string]any{"attention.key_length": 64, "attention.value_length": 64}), "", slices.Repeat([]string{attention + mlp}, 4)},
	{"command-r", with(map[string]any{"logit_scale": float32(1), "attention.layer_norm_epsilon": float32(1e-5)}), "", slices.Repeat([]string{attention + bareMLP}, 4)},
	{"smollm3", nil, "", slices.Repeat([]string{attention + mlp}, 4)},
	{"seed_oss", nil, "output 1024 4096", slices.Repeat([]string{attention + qkvBias + strings.Replace(mlp, "ffn_norm", "post_attention_norm", 1)}, 4)},
	{"granite", with(map[string]any{"attention.scale": float32(1), "embedding_scale": float32(1), "logit_scale": float32(1), "residual_scale": float32(1)}), "", slices.Repeat([]string{attention + mlp}, 4)},
	{"glm4", nil, "output 1024 4096", slices.Repeat([]string{attention + qkvBias + "post_attention_norm 1024, ffn_norm 1024, post_ffw_norm 1024, ffn_up 1024 5632, ffn_down 2816 1024"}, 4)},
	{"hunyuan-dense", with(map[string]any{"attention.key_length": 64, "attention.value_length": 64}), "", slices.Repeat([]string{attention + headNorms + mlp}, 4)},
	{"hunyuan-moe", with(mixtureKeys, map[string]any{"feed_forward_length": 512, "expert_shared_feed_forward_length": 512, "attention.key_length": 64, "attention.value_length": 64}), "", slices.Repeat([]string{attention + headNorms + expertsOf + shared}, 4)},
	{"mistral3", nil, "output 1024 4096", slices.Repeat([]string{attention + mlp}, 4)},
	{"mistral3 with scaled queries", with(map[string]any{"attention.temperature_scale": float32(0.1), "attention.temperature_length": 8192, "rope.scaling.original_context_length": 8192}), "output 1024 4096", slices.Repeat([]string{attention + mlp}, 4)},
	{"olmoe", with(mixtureKeys, map[string]any{"attention.head_count_kv": 16, "feed_forward_length": 512}), "output 1024 4096", slices.Repeat([]string{ungrouped + "attn_q_norm 1024, attn_k_norm 1024," + expertsOf}, 4)},
	{"qwen2moe", with(mixtureKeys, map[string]any{"expert_shared_feed_forward_length": 512}), "output 1024 4096", slices.Repeat([]string{attention + qkvBias + expertsOf + shared + "ffn_gate_inp_shexp 1024"}, 4)},
	{"starcoder2", with(epsilon), "output_norm.bias 1024", slices.Repeat([]string{attention + qkvBias + "attn_norm.bias 1024, attn_output.bias 1024, ffn_norm 1024, ffn_norm.bias 1024," + plainMLP}, 4)},
	{"gptneox", with(epsilon, map[string]any{"attention.head_count_kv": 16, "use_parallel_residual": true}), "output_norm.bias 1024, output 1024 4096", slices.Repeat([]string{"attn_norm 1024, attn_norm.bias 1024, attn_qkv 1024 3072, attn_qkv.bias 3072, attn_output 1024 1024, attn_output.bias 1024, ffn_norm 1024, ffn_norm.bias 1024," + plainMLP}, 4)},
	{"phi2", with(epsilon, map[string]any{"attention.head_count_kv": 16, "rope.dimension_count": 32}), "output_norm.bias 1024, output 1024 4096, output.bias 4096", slices.Repeat([]string{ungrouped + "attn_q.bias 1024, attn_k.bias 1024, attn_v.bias 1024, attn_norm.bias 1024, attn_output.bias 1024," + plainMLP}, 4)},
	{"falcon", with(epsilon), "output_norm.bias 1024, output 1024 4096", slices.Repeat([]string{"attn_norm 1024, attn_norm.bias 1024, attn_norm_2 1024, attn_norm_2.bias 1024, attn_qkv 1024 1536, attn_output 1024 1024, ffn_up 1024 2816, ffn_down 2816 1024"}, 4)},
	{"stablelm", with(epsilon), "output_norm.bias 1024, output 1024 4096", slices.Repeat([]string{attention + mlp + "attn_norm.bias 1024, ffn_norm.bias 1024"}, 4)},
	{"gemma4", with(map[string]any{"attention.sliding_window": 512, "attention.key_length": 128, "attention.value_length": 128, "attention.key_length_swa": 64, "attention.value_length_swa": 64, "attention.sliding_window_pattern": []bool{true, true, true, false}, "attention.shared_kv_layers": 0,
		"attention.head_count_kv": []int{4, 4, 4, 2}, "embedding_length_per_layer_input": 64, "rope.dimension_count": 128, "rope.dimension_count_swa": 64}), "rope_freqs 64, per_layer_token_embd 256 4096, per_layer_model_proj 1024 256, per_layer_proj_norm 64",
		append(slices.Repeat([]string{attention + headNorms + mlp + gemma4}, 3), "attn_norm 1024, attn_q 1024 2048, attn_k 1024 256, attn_v 1024 256, attn_output 2048 1024, attn_q_norm 128, attn_k_norm 128,"+mlp+gemma4)},
	{"gemma3n", with(map[string]any{"attention.sliding_window": 512, "attention.sliding_window_pattern": []bool{true, true, true, true, false}, "attention.key_length": 64, "attention.value_length": 64, "attention.shared_kv_layers": 0, "altup.num_inputs": 4, "altup.active_idx": 0, "embedding_length_per_layer_input": 256, "activation_sparsity_scale": []float32{0, 0, 0, 0, 0}}), "altup_proj 1024 1024 3, altup_unembd_proj 1024 1024 3, per_layer_token_embd 1280 4096, per_layer_model_proj 1024 1280, per_layer_proj_norm 256",
		slices.Repeat([]string{attention + headNorms + mlp + "post_attention_norm 1024, post_ffw_norm 1024, inp_gate 1024 256, proj 256 1024, post_norm 1024, altup_correct_coef 4 4, altup_correct_scale 1024, altup_predict_coef 4 16, altup_router 1024 4, altup_router_norm 1024, laurel_l 1024 64, laurel_r 64 1024, laurel_post_norm 1024"}, 5)},
	{"kimi-linear", with(sharedKeys, map[string]any{"leading_dense_block_count": 1, "attention.head_count_kv": []int{0, 0, 0, 1}, "attention.kv_lora_rank": 256, "attention.key_length": 288, "attention.value_length": 256, "attention.key_length_mla": 96, "attention.value_length_mla": 64, "rope.dimension_count": 32, "ssm.conv_kernel": 4, "kda.head_dim": 128}), "output 1024 4096",
		[]string{kda + mlp, kda + expertsOf + shared + chosen, kda + expertsOf + shared + chosen, "attn_norm 1024, attn_q 1024 1536, attn_kv_a_mqa 1024 288, attn_kv_a_norm 256, attn_k_b 64 256 16, attn_v_b 256 64 16, attn_output 1024 1024," + expertsOf + shared + chosen}},
	{"nemotron_h_moe", with(mamba2Keys, sharedKeys, map[string]any{"attention.layer_norm_epsilon": float32(1e-5), "attention.head_count_kv": []int{0, 0, 4, 0}, "feed_forward_length": []int{0, 512, 0, 512}}), "output 1024 4096",
		[]string{mamba2Of, nemotronMoE, attention, nemotronMoE}},
	{"qwen35 with a block that predicts", with(wide, map[string]any{"nextn_predict_layers": 1, "rope.dimension_count": 64, "rope.dimension_sections": []int{11, 11, 10, 0}, "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 4, "ssm.time_step_rank": 8, "ssm.inner_size": 1024, "full_attention_interval": 4}), "output 1024 4096",
		append(slices.Repeat([]string{"attn_norm 1024, post_attention_norm 1024, attn_qkv 1024 2048, attn_gate 1024 1024, ssm_conv1d 4 2048, ssm_dt.bias 8, ssm_a! 8, ssm_beta 1024 8, ssm_alpha 1024 8, ssm_norm 128, ssm_out 1024 1024," + plainQwen}, 3),
			"attn_norm 1024, post_attention_norm 1024, attn_q 1024 4096, attn_k 1024 512, attn_v 1024 512, attn_output 2048 1024, attn_q_norm 128, attn_k_norm 128,"+plainQwen,
			"attn_norm 1024, post_attention_norm 1024, attn_q 1024 4096, attn_k 1024 512, attn_v 1024 512, attn_output 2048 1024, attn_q_norm 128, attn_k_norm 128,"+plainQwen+predicts)},
	{"glm4moe with a block that predicts", with(sharedKeys, map[string]any{"leading_dense_block_count": 1, "nextn_predict_layers": 1}), "output 1024 4096",
		append([]string{attention + strings.Replace(mlp, "ffn_norm", "post_attention_norm", 1)}, slices.Repeat([]string{attention + qkvBias + strings.Replace(expertsOf, "ffn_norm", "post_attention_norm", 1) + shared + chosen}, 2)[0], attention+qkvBias+strings.Replace(expertsOf, "ffn_norm", "post_attention_norm", 1)+shared+chosen,
			attention+qkvBias+strings.Replace(expertsOf, "ffn_norm", "post_attention_norm", 1)+shared+chosen+predicts)},
	{"exaone", nil, "output 1024 4096, rope_freqs 32", slices.Repeat([]string{attention + mlp}, 4)},
	{"internlm2", nil, "output 1024 4096", slices.Repeat([]string{attention + mlp}, 4)},
	{"baichuan", with(map[string]any{"attention.head_count_kv": 16}), "output 1024 4096", slices.Repeat([]string{ungrouped + mlp}, 32)},
	{"xverse", with(map[string]any{"attention.head_count_kv": 16}), "output 1024 4096", slices.Repeat([]string{ungrouped + mlp}, 4)},
	{"minicpm", nil, "", slices.Repeat([]string{attention + mlp}, 4)},
	{"apertus", with(map[string]any{"xielu.alpha_n": []float32{1, 1, 1, 1}, "xielu.alpha_p": []float32{1, 1, 1, 1}, "xielu.beta": []float32{1, 1, 1, 1}, "xielu.eps": []float32{1, 1, 1, 1}}), "output 1024 4096", slices.Repeat([]string{attention + headNorms + "ffn_norm 1024, ffn_up 1024 2816, ffn_down 2816 1024"}, 4)},
	{"lfm2moe", with(mixtureKeys, map[string]any{"shortconv.l_cache": 3, "attention.head_count_kv": []int{0, 0, 4, 0}, "leading_dense_block_count": 1, "expert_gating_func": 2}), "token_embd_norm 1024", []string{conv + mlp, conv + expertsOf + chosen, attention + headNorms + expertsOf + chosen, conv + expertsOf + chosen}},
	{"qwen2vl", with(map[string]any{"rope.dimension_sections": []int{16, 24, 24, 0}}), "output 1024 4096", slices.Repeat([]string{attention + qkvBias + mlp}, 4)},
	{"qwen3vl", with(wide, map[string]any{"rope.dimension_sections": []int{24, 20, 20, 0}, "n_deepstack_layers": 3}), "output 1024 4096", slices.Repeat([]string{"attn_norm 1024, attn_q 1024 2048, attn_k 1024 512, attn_v 1024 512, attn_output 2048 1024, attn_q_norm 128, attn_k_norm 128," + mlp}, 4)},
	{"qwen3vlmoe", with(mixtureKeys, wide, map[string]any{"rope.dimension_sections": []int{24, 20, 20, 0}, "n_deepstack_layers": 3}), "output 1024 4096", slices.Repeat([]string{"attn_norm 1024, attn_q 1024 2048, attn_k 1024 512, attn_v 1024 512, attn_output 2048 1024, attn_q_norm 128, attn_k_norm 128," + expertsOf}, 4)},
	{"exaone-moe", with(sharedKeys, map[string]any{"leading_dense_block_count": 1, "attention.sliding_window": 512, "attention.sliding_window_pattern": []bool{true, true, true, false}}), "output 1024 4096",
		append([]string{attention + headNorms + mlp}, slices.Repeat([]string{attention + headNorms + expertsOf + shared + chosen}, 3)...)},
	{"granitemoe", with(mixtureKeys, map[string]any{"feed_forward_length": 512, "attention.scale": float32(1), "embedding_scale": float32(1), "logit_scale": float32(1), "residual_scale": float32(1)}), "", slices.Repeat([]string{attention + expertsOf}, 4)},
	{"nemotron", with(epsilon), "output 1024 4096, output_norm.bias 1024", slices.Repeat([]string{attention + "attn_norm.bias 1024, ffn_norm 1024, ffn_norm.bias 1024, ffn_up 1024 2816, ffn_down 2816 1024"}, 4)},
	{"arcee", nil, "output 1024 4096", slices.Repeat([]string{attention + "ffn_norm 1024, ffn_up 1024 2816, ffn_down 2816 1024"}, 4)},
	{"ernie4_5", nil, "output 1024 4096", slices.Repeat([]string{attention + mlp}, 4)},
}

const (
	ungrouped   = "attn_norm 1024, attn_q 1024 1024, attn_k 1024 1024, attn_v 1024 1024, attn_output 1024 1024,"
	latent      = "attn_norm 1024, attn_q_a 1024 512, attn_q_a_norm 512, attn_q_b 512 1536, attn_kv_a_mqa 1024 288, attn_kv_a_norm 256, attn_k_b 64 256 16, attn_v_b 256 64 16, attn_output 1024 1024,"
	wholeLatent = "attn_norm 1024, attn_q_a 1024 512, attn_q_a_norm 512, attn_q_b 512 1536, attn_kv_a_mqa 1024 288, attn_kv_a_norm 256, attn_kv_b 256 2048, attn_output 1024 1024,"
	indexer     = "indexer.k_norm.weight 128, indexer.k_norm.bias 128, indexer.proj.weight 1024 8, indexer.attn_k.weight 1024 128, indexer.attn_q_b.weight 512 1024,"
	wideIndexer = "indexer.k_norm.weight 128, indexer.k_norm.bias 128, indexer.proj.weight 1024 64, indexer.attn_k.weight 1024 128, indexer.attn_q_b.weight 512 8192,"
	stepWindow  = "attn_norm 1024, attn_q 1024 1536, attn_k 1024 256, attn_v 1024 256, attn_output 1536 1024, attn_gate 1024 24," + headNorms + expertsOf + chosen
	predicts    = "nextn.eh_proj.weight 2048 1024, nextn.enorm.weight 1024, nextn.hnorm.weight 1024, nextn.shared_head_norm.weight 1024"
	plainMLP    = "ffn_up 1024 2816, ffn_up.bias 2816, ffn_down 2816 1024, ffn_down.bias 1024,"
	gemma4      = "post_attention_norm 1024, post_ffw_norm 1024, layer_output_scale 1, inp_gate 1024 64, proj 64 1024, post_norm 1024"
	kda         = "attn_norm 1024, ssm_conv1d_q 4 1 2048, ssm_conv1d_k 4 1 2048, ssm_conv1d_v 4 1 2048, attn_q 1024 2048, attn_k 1024 2048, attn_v 1024 2048, ssm_f_a 1024 128, ssm_f_b 128 2048, ssm_beta 1024 16, ssm_a! 1 16, ssm_dt.bias 2048, ssm_g_a 1024 128, ssm_g_b 128 2048, ssm_norm 128, attn_output 2048 1024,"
	jambaOf     = mambaOf + "ssm_dt_norm 64, ssm_b_norm 16, ssm_c_norm 16,"
	conv        = "attn_norm 1024, shortconv.conv.weight 3 1024, shortconv.in_proj.weight 1024 3072, shortconv.out_proj.weight 1024 1024,"
)

var (
	bareMLP     = strings.TrimPrefix(mlp, "ffn_norm 1024, ")
	nemotronMoE = "attn_norm 1024, ffn_gate_inp 1024 16, ffn_up_exps 1024 512 16, ffn_down_exps 512 1024 16, ffn_up_shexp 1024 512, ffn_down_shexp 512 1024," + chosen
	plainQwen   = strings.TrimPrefix(mlp, "ffn_norm 1024, ")
	sparseQwen  = strings.TrimPrefix(expertsOf, "ffn_norm 1024, ") + shared + "ffn_gate_inp_shexp 1024,"
)

// write writes the model to a file.
func (m smallModel) write(t *testing.T, folder string) string {
	architecture, _, _ := strings.Cut(m.architecture, " ")
	keys := []ggufKey{{"general.architecture", architecture}, {"tokenizer.ggml.model", "none"}}
	all := with(usualKeys, m.keys, map[string]any{"block_count": len(m.blocks)})
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name] != nil {
			prefix := architecture + "."
			if strings.HasPrefix(name, "xielu.") {
				prefix = ""
			}
			keys = append(keys, ggufKey{prefix + name, all[name]})
		}
	}
	outside := fmt.Sprintf("token_embd 1024 %d, ", words)
	if !strings.Contains(m.outside, "token_embd_norm") {
		outside += "output_norm 1024, "
	}
	path := filepath.Join(folder, m.architecture+".gguf")
	writeGGUF(t, path, keys, append(parseTensors("", outside+m.outside), blocks(m.blocks...)...))
	return path
}
