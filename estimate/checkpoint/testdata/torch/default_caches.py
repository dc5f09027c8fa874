#!/usr/bin/env python3
"""Writes what the caches of small models of transformers hold after a prompt and after the next token.

    default_caches.py > default_caches.json

For each type that has a causal language model it builds a small random model from the type's default
config with the sizes below, runs a prompt and one more token, and adds up the storages that the cache
holds, each once: of the model in float32, and in bfloat16. The config is as save_pretrained writes it. A type
that does not build or run so is left out, with the error on stderr. torch 2.15.0, transformers 5.24.0.
"""

import copy
import json
import signal
import sys
import warnings

warnings.filterwarnings("ignore")
import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

transformers.logging.set_verbosity_error()
BATCH, PROMPT = 2, 40
# Sizes by key; a key that a config lacks is left out.
SIZES = {
    "vocab_size": 128, "hidden_size": 64, "n_embd": 64, "d_model": 64, "n_embed": 64,
    "num_hidden_layers": 4, "n_layer": 4, "n_layers": 4, "num_layers": 4, "decoder_layers": 4, "encoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "decoder_attention_heads": 4, "encoder_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "ffn_dim": 96, "decoder_ffn_dim": 96, "encoder_ffn_dim": 96, "n_inner": 96,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_num_experts": 4, "moe_k": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "sliding_window": 16, "attention_chunk_size": 16, "window_size": 16, "attention_window_size": 16, "local_attention": 16,
    "max_position_embeddings": 256, "n_positions": 256, "max_seq_len": 256, "max_sequence_length": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "layer_types": None, "mlp_layer_types": None,
    "q_lora_rank": 24, "kv_lora_rank": 20, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10, "head_dim": 16,
    "index_topk": 8, "index_n_heads": 2, "index_head_dim": 16,
    "vocab_size_per_layer_input": 128, "hidden_size_per_layer_input": 8, "rotary_dim": 8,
    "embedding_size": 64, "word_embed_proj_dim": 64, "state_size": 8, "mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "num_kv_shared_layers": 0, "time_step_rank": 4,
}
# What some types need to build at these sizes.
MORE = {
    "axk1": {"num_key_value_heads": 4, "head_dim": 8},
    "axk2": {"num_key_value_heads": 4},
    "bailing_hybrid": {"layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"], "num_key_value_heads": 4, "head_dim": 16},
    "bamba": {"attn_layer_indices": [1, 3], "mamba_n_heads": 8, "mamba_d_head": 16},
    "deepseek_v2": {"num_key_value_heads": 4, "topk_method": "greedy", "head_dim": 8},
    "deepseek_v3": {"num_key_value_heads": 4, "head_dim": 8},
    "deepseek_v32": {"num_key_value_heads": 4},
    "dots1": {"layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"], "n_shared_experts": 1},
    "dots3_note_text": {"num_key_value_heads": 4},
    "falcon_h1": {"mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16},
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]},
    "gemma3n_text": {"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]},
    "gemma4_text": {"global_head_dim": 32, "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"], "num_kv_shared_layers": 0},
    "gemma4_unified_text": {"global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True, "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]},
    "git": {"vocab_size": 128, "num_hidden_layers": 2},
    "glm4_moe_lite": {"num_key_value_heads": 4},
    "glm_moe_dsa": {"num_key_value_heads": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 16},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {"layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"], "num_key_value_heads": 4, "num_experts_per_token": 2, "num_experts": 4},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "llama4_text": {"no_rope_layers": [1, 1, 0, 1]},
    "longcat_flash": {"num_key_value_heads": 4, "ffn_hidden_size": 64, "expert_ffn_hidden_size": 32, "zero_expert_num": 2, "moe_topk": 2, "head_dim": 8},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 8, "n_groups": 2},
    "minicpm3": {"num_key_value_heads": 4},
    "ministral": {"head_dim": 16, "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]},
    "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
    "nemotron_h": {"layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 8},
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"]},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"]},
    "sarvam_mla": {"num_key_value_heads": 4},
    "xlstm": {"embedding_dim": 64, "num_blocks": 4, "num_heads": 4},
    "youtu": {"num_key_value_heads": 4, "head_dim": 8},
    "zamba2": {"layer_types": ["mamba", "hybrid", "mamba", "hybrid"], "hybrid_layer_ids": [1, 3], "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}


def storages(value, seen, out, depth=0):
    if isinstance(value, torch.Tensor):
        s = value.untyped_storage()
        if s.data_ptr() not in seen and s.nbytes() > 8:
            seen.add(s.data_ptr())
            name = str(value.dtype).removeprefix("torch.")
            out[name] = out.get(name, 0) + s.nbytes()
    elif depth > 6:
        return
    elif isinstance(value, dict):
        for v in value.values():
            storages(v, seen, out, depth + 1)
    elif isinstance(value, (list, tuple)):
        for v in value:
            storages(v, seen, out, depth + 1)
    elif hasattr(value, "__dict__"):
        for v in vars(value).values():
            storages(v, seen, out, depth + 1)


def held(outputs):
    cache = None
    for key in ("cache", "past_key_values", "cache_params", "state", "mems"):
        if getattr(outputs, key, None) is not None:
            cache = getattr(outputs, key)
            break
    out = {}
    storages(cache, set(), out)
    return out, cache


def measure(config, dtype):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    ids = torch.randint(3, 100, (BATCH, PROMPT))
    with torch.no_grad():
        first = model(ids, use_cache=True)
        prompt, cache = held(first)
        name = next(k for k in ("cache", "past_key_values", "cache_params", "state", "mems", "logits") if getattr(first, k, None) is not None)
        if name == "logits":
            return {}, {}, type(model).__name__
        try:
            second = model(torch.randint(3, 100, (BATCH, 1)), use_cache=True, **{name: cache})
            after, _ = held(second)
        except Exception:
            after = None
    return prompt, after, type(model).__name__


def sized(kind, drop=()):
    base = CONFIG_MAPPING[kind]()
    have = base.to_dict()
    keys = {k: v for k, v in SIZES.items() if k in have and k not in drop}
    # A number that the defaults leave unset stays unset.
    keys = {k: v for k, v in keys.items() if have[k] is not None or k in ("pad_token_id", "layer_types", "mlp_layer_types")}
    keys.update(MORE.get(kind, {}))
    return CONFIG_MAPPING[kind](**keys)


def late(*_):
    raise TimeoutError("it takes more than 60 s")


signal.signal(signal.SIGALRM, late)
results = []
kinds = sys.argv[1:] or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
for kind in kinds:
    row = {"type": kind}
    signal.alarm(60)
    try:
        config = sized(kind)
        with torch.device("meta"):
            n = sum(p.numel() for p in AutoModelForCausalLM.from_config(copy.deepcopy(config)).parameters())
        if n > 60_000_000:
            raise ValueError(f"{n} parameters are too many to run")
        prompt, after, architecture = measure(copy.deepcopy(config), torch.float32)
        narrow, after_narrow, _ = measure(copy.deepcopy(config), torch.bfloat16)
        if not prompt:
            continue  # it is an encoder, or keeps no cache
        config.architectures = [architecture]
        row["config"] = json.loads(config.to_json_string(use_diff=True))
        row["prompt"] = [sum(prompt.values()), sum(narrow.values())]
        row["next"] = after and [sum(after.values()), sum(after_narrow.values())]
    except Exception as e:
        row["error"] = f"{type(e).__name__}: {str(e)[:150]}"
    signal.alarm(0)
    results.append(row)
    print(kind, row.get("error") or (row["prompt"], row["next"]), file=sys.stderr, flush=True)
print("[\n" + ",\n".join(json.dumps(row) for row in results if "error" not in row) + "\n]")
