package family

import (
	"path"
	"slices"
)

// harmlessKeys are the keys that bear on no size in any class that has them, by the reason why. A
// star stands for any characters.
var harmlessKeys = []struct {
	why  string
	keys []string
}{
	{"they say where the file is from and what reads it, or another package reads them", []string{
		"model_type", "_class_name", "_diffusers_version", "transformers_version", "_name_or_path", "name_or_path", "_commit_hash",
		"architectures", "auto_map", "tokenizer_class", "processor_class", "custom_pipelines", "model_name", "version", "_sliding_window_pattern",
		"dtype", "torch_dtype", "quantization_config",
	}},
	{"numbers of tokens in the vocabulary", []string{
		"*_token_id", "*_token_ids", "*_token_index", "*_token", "*_token_idx", "token_index*", "*suppress_tokens", "vocab_offset", "*_id_offset",
	}},
	{"names of classes, whose number is read from id2label, and what a head does with its values", []string{
		"id2label", "label2id", "label_names", "problem_type", "finetuning_task", "task_specific_params", "task_params", "classifier_pooling",
		"language", "language_codes", "lang*_id",
	}},
	{"weights before training", []string{
		"initializer_*", "init_std", "init_xavier_std", "init_device", "init_method*", "*_init_std", "*_initializer_range", "logit_scale_init_value",
		"layerscale_value", "rescale_prenorm_residual", "rescale_layers", "time_step_min", "time_step_max", "time_step_floor",
		"time_step_scale", "time_step_init_scheme", "mamba_dt_*",
	}},
	{"numbers that values are multiplied with, added to, or cut at", []string{
		"*_eps", "*_epsilon", "eps", "*_multiplier", "*_multipliers", "logits_scaling", "logit_scale", "routed_scaling_factor", "query_pre_attn_scalar",
		"scale_attn_weights", "scale_attn_by_inverse_layer_idx", "attn_scale", "floor_scale", "scale_embedding", "softmax_scale",
		"swiglu_alpha", "swiglu_limit", "altup_coef_clip", "gradient_clipping", "time_step_limit", "conf_residual_weight", "scaling_factor", "shift_factor",
		"norm_topk_prob", "normalize_*weights", "latents_mean", "latents_std", "interpolation_scale",
	}},
	{"angles of the rotation; which part of a head rotates has keys of its own", []string{
		"rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq", "rope_interleave", "rope_base", "rotary_emb_base",
		"rotary_base", "*_rope_theta", "original_max_position_embeddings", "mrope_section", "axes_dims_rope", "flip_sin_to_cos", "freq_shift",
	}},
	{"the loss, and noise that training adds", []string{
		"*_loss_coef", "*_loss_coeff", "*_loss_coefficient", "*_loss_weight", "*_loss_alpha", "*_loss_reduction", "*_loss_ignore_index", "*_jitter_noise", "*_jitter_eps",
		"aux_loss_*", "seq_aux", "ctc_*", "num_negatives", "contrastive_logits_temperature", "*_ignore_index", "ignore_index", "label_smoothing",
		"mask_time_*", "mask_feature_*", "apply_spec_augment", "embedding_fraction",
	}},
	{"they only take layers away from single steps of training", []string{"layerdrop", "*_layerdrop"}},
	{"which experts are chosen, not how many", []string{"topk_method", "topk_group", "n_group", "scoring_func", "moe_router_*", "router_bias*"}},
	{"how transformers runs what it has run one way since 4.40", []string{
		"pretraining_tp", "slow_but_exact", "ep_size", "use_cache", "return_dict", "use_return_dict", "legacy", "deterministic_flash_attn",
		"sparse_pred_ignore_index", "chunk_size_feed_forward", "torchscript", "gradient_checkpointing", "use_flash_attn*", "use_fused_*", "fused_*",
	}},
	{"which outputs a backbone returns", []string{"out_features", "out_indices", "stage_names", "reshape_hidden_states", "apply_layernorm", "_out_features", "_out_indices"}},
	{"how many tokens an image or sound becomes in a prompt, which is given by its length", []string{
		"image_seq_length", "mm_tokens_per_image", "*_soft_tokens_per_image", "tokens_per_second", "vision_feature_layer", "vision_feature_select_strategy",
		"image_grid_pinpoints", "image_aspect_ratio",
	}},
	{"how text is written, besides the keys of GenerationConfig", []string{
		"min_new_tokens", "max_new_tokens", "max_generation_length", "forced_decoder_ids", "renormalize_logits", "prefix", "normalize_before_topk", "output_past",
		"median_filter_width", "alignment_heads", "no_timestamps*", "is_multilingual", "is_encoder_decoder",
	}},
}

// harmless reports whether a key bears on no size, in any class that has it.
func harmless(key string) bool {
	if slices.Contains(common().Generation, key) {
		return true
	}
	for _, group := range harmlessKeys {
		if slices.ContainsFunc(group.keys, func(pattern string) bool {
			ok, _ := path.Match(pattern, key) // the patterns are well formed
			return ok
		}) {
			return true
		}
	}
	return false
}

// gates are keys that only count where another one is on.
var gates = map[string]string{
	"output_hidden_size": "add_adapter",
	"sliding_window":     "use_sliding_window", "max_window_layers": "use_sliding_window",
	"num_experts_per_tok": "num_local_experts",
	"num_experts":         "enable_moe_block", "top_k_experts": "enable_moe_block", "moe_intermediate_size": "enable_moe_block",
}

// trains are keys that change no more than what training keeps.
var trains = []string{"*drop*", "*_act", "*_act_fn", "*activation*", "output_router_logits"}

// forTraining reports whether a key changes no more than what training keeps.
func forTraining(key string) bool {
	return slices.ContainsFunc(trains, func(pattern string) bool {
		ok, _ := path.Match(pattern, key)
		return ok
	})
}
