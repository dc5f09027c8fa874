"""Writes quantized.json: what llama.cpp's quantizer makes of known models, for TestQuantizer.

The tensors of a model are those that llama.cpp's converter writes of transformers' modules: gguf has their names, and
experts are joined by role. Their types are chosen by llama.cpp itself, which needs no weights for that
(llama_quant_compute_types of its library). Give the folder of libllama.so and the models.json of package zoo:

    python quantized.py node_modules/@node-llama-cpp/linux-x64/bins/linux-x64 ../../zoo/models.json

It was run with @node-llama-cpp/linux-x64 3.22.1 (llama.cpp v0.5.0), gguf 0.19.0, torch 2.15.0 and transformers 5.24.0.
"""

import ctypes
import glob
import json
import os
import re
import sys

import gguf
import torch
import transformers

FTYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12, "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15,
          "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ2_XXS": 19, "IQ2_XS": 20, "Q2_K_S": 21, "IQ3_XS": 22, "IQ3_XXS": 23, "IQ1_S": 24, "IQ4_NL": 25,
          "IQ3_S": 26, "IQ3_M": 27, "IQ2_S": 28, "IQ2_M": 29, "IQ4_XS": 30, "IQ1_M": 31, "BF16": 32, "F16": 1, "TQ1_0": 36, "TQ2_0": 37, "MXFP4_MOE": 38}

# By the repository of models.json: llama.cpp's architecture.
MODELS = {
    "mistralai/Mixtral-8x7B-v0.1": "llama", "mistralai/Mistral-Nemo-Base-2407": "llama",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": "llama", "meta-llama/Llama-3.1-8B": "llama", "meta-llama/Llama-3.1-70B": "llama", "meta-llama/Llama-3.1-405B": "llama",
    "meta-llama/Llama-3.2-1B": "llama", "meta-llama/Llama-3.2-3B": "llama", "HuggingFaceTB/SmolLM2-135M": "llama", "HuggingFaceTB/SmolLM2-360M": "llama", "mistralai/Mixtral-8x22B-v0.1": "llama",
    "Qwen/Qwen2-72B": "qwen2", "Qwen/Qwen3-0.6B": "qwen3", "Qwen/Qwen3-8B": "qwen3", "Qwen/Qwen3-32B": "qwen3",
    "Qwen/Qwen3-30B-A3B": "qwen3moe", "Qwen/Qwen3-235B-A22B": "qwen3moe", "Qwen/Qwen1.5-MoE-A2.7B": "qwen2moe",
    "google/gemma-2b": "gemma", "google/gemma-7b": "gemma", "google/gemma-2-2b": "gemma2", "google/gemma-2-9b": "gemma2", "google/gemma-2-27b": "gemma2",
    "google/gemma-3-1b-it": "gemma3", "google/gemma-3-270m": "gemma3", "microsoft/Phi-3-mini-4k-instruct": "phi3", "microsoft/phi-4": "phi3",
    "microsoft/phi-2": "phi2", "microsoft/Phi-3.5-MoE-instruct": "phimoe", "openai/gpt-oss-20b": "gpt-oss", "openai/gpt-oss-120b": "gpt-oss",
    "deepseek-ai/DeepSeek-V2-Lite": "deepseek2", "deepseek-ai/DeepSeek-V3": "deepseek2", "moonshotai/Kimi-K2-Instruct": "deepseek2",
    "zai-org/GLM-4.5-Air": "glm4moe", "tiiuae/falcon-7b": "falcon", "tiiuae/falcon-40b": "falcon", "bigcode/starcoder2-7b": "starcoder2",
    "allenai/OLMo-2-1124-7B": "olmo2", "allenai/OLMoE-1B-7B-0924": "olmoe", "allenai/OLMo-7B-hf": "olmo", "EleutherAI/pythia-1.4b": "gptneox", "EleutherAI/gpt-neox-20b": "gptneox",
    "stabilityai/stablelm-2-1_6b": "stablelm", "CohereForAI/c4ai-command-r-v01": "command-r", "MiniMaxAI/MiniMax-M2": "minimax-m2",
    "ibm-research/PowerLM-3b": "granite", "HuggingFaceTB/SmolLM3-3B": "smollm3", "ByteDance-Seed/Seed-OSS-36B-Instruct": "seed_oss", "LiquidAI/LFM2-1.2B": "lfm2",
    "mosaicml/mpt-7b": "mpt", "Qwen/Qwen3-Next-80B-A3B-Instruct": "qwen3next", "baidu/ERNIE-4.5-0.3B-PT": "ernie4_5",
    "mistralai/Ministral-8B-Instruct-2410": "llama", "state-spaces/mamba-130m-hf": "mamba",
}

# What the converter writes in float32 although it is a matrix (gguf's and convert_hf_to_gguf's lists).
FLOAT32 = re.compile(r"ffn_gate_inp|ffn_gate_inp_shexp|position_embd|token_types|ssm_conv1d|shortconv\.conv|ssm_a$|_norm\.weight$|\.bias$")


class Desc(ctypes.Structure):
    _fields_ = [("arch", ctypes.c_char_p)] + [(n, ctypes.c_uint32) for n in ("embd", "ff", "layer", "head", "head_kv", "expert", "head_k", "head_v")]


class Params(ctypes.Structure):
    _fields_ = [("nthread", ctypes.c_int), ("ftype", ctypes.c_int), ("output", ctypes.c_int), ("embedding", ctypes.c_int)] + \
               [(n, ctypes.c_bool) for n in ("requantize", "quantize_output", "only_copy", "pure", "keep_split", "dry_run")] + \
               [(n, ctypes.c_void_p) for n in ("imatrix", "kv", "tt", "prune")]


class Init(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def load(folder):
    for name in ("libggml-base.so", "libggml*.so", "libllama.*so*"):
        for path in sorted(glob.glob(os.path.join(folder, name))):
            if "cpu" not in path:
                last = ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
                base = last if name == "libggml-base.so" else base
    base.ggml_init.restype = ctypes.c_void_p
    base.ggml_init.argtypes = [Init]
    base.ggml_free.argtypes = [ctypes.c_void_p]
    base.ggml_new_tensor.restype = ctypes.c_void_p
    base.ggml_new_tensor.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_int64)]
    base.ggml_set_name.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    base.ggml_row_size.restype = ctypes.c_size_t
    base.ggml_row_size.argtypes = [ctypes.c_int, ctypes.c_int64]
    quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    last.llama_log_set(quiet, None)
    last.quiet = quiet
    last.llama_model_quantize_default_params.restype = Params
    new = last._Z31llama_quant_model_from_metadataPK22llama_quant_model_desc
    new.restype, new.argtypes = ctypes.c_void_p, [ctypes.POINTER(Desc)]
    start = last._Z16llama_quant_initPK11llama_modelPK27llama_model_quantize_params
    start.restype, start.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.POINTER(Params)]
    types = last._Z25llama_quant_compute_typesP19quantize_state_impl11llama_ftypePP11ggml_tensorP9ggml_typem
    types.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return base, last, new, start, types


def split(name, shape, c):
    """The tensors that files of the model's own form have in place of one of transformers."""
    if m := re.match(r"(.*mlp)\.experts\.(gate_up_proj|down_proj)(_bias)?$", name):
        at, of, bias = m.groups()
        e, transposed = shape[0], c.model_type in ("gpt_oss", "llama4")
        if of == "down_proj":
            if not bias and transposed:
                shape = (e, shape[2], shape[1])
            return [(f"{at}.experts.down_proj{'.bias' if bias else '.weight'}", shape)]
        half = (e, shape[1] // 2) if bias else (e, shape[2] // 2, shape[1]) if transposed else (e, shape[1] // 2, shape[2])
        return [(f"{at}.experts.{p}{'.bias' if bias else '.weight'}", half) for p in ("gate_proj", "up_proj")]
    if name.endswith("kv_b_proj.weight"):
        head, rank = c.num_attention_heads, c.kv_lora_rank
        at = name.removesuffix("kv_b_proj.weight")
        return [(at + "k_b_proj.weight", (head, rank, c.qk_nope_head_dim)), (at + "v_b_proj.weight", (head, c.v_head_dim, rank))]
    return [(name, shape)]


EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}


def named(names, name):
    """The name in a GGUF file."""
    if m := re.match(r"model\.layers\.(\d+)\.mlp\.experts\.(\w+)\.(weight|bias)$", name):
        return f"blk.{m[1]}.{EXPERTS[m[2]]}.{m[3]}"
    for of in (name, name.replace(".mlp.router.", ".mlp.gate."), name.replace(".mlp.gate.", ".block_sparse_moe.gate."), name.replace(".mlp.router.", ".block_sparse_moe.gate.")):
        if found := names.get_name(of, try_suffixes=(".weight", ".bias")):
            return found
    return None


def tensors(config, arch):
    c = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "quantization_config")}
    cls = getattr(transformers, config["architectures"][0])
    settings = cls.config_class(**c)
    if "tie_word_embeddings" in c:
        settings.tie_word_embeddings = c["tie_word_embeddings"]
    with torch.device("meta"):
        model = cls(settings)
    c = model.config.get_text_config()
    n = getattr(c, "num_hidden_layers", None) or getattr(c, "n_layer", None) or getattr(c, "n_layers", None)
    by_name = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(by_name[arch], n)
    found = {}
    seen = set()
    for name, p in model.named_parameters(remove_duplicate=False):
        if id(p) in seen:
            continue
        seen.add(id(p))
        for of, shape in split(name, tuple(p.shape), c):
            to = named(names, of)
            if to is None:
                if of.endswith((".A_log", ".dt_bias", ".D", "e_score_correction_bias", "sinks")):
                    to = "blk." + re.search(r"\d+", of)[0] + "." + of.rsplit(".", 1)[1] + ".1d"
                else:
                    raise KeyError(f"{arch}: {of} {shape}")
            if arch == "gpt2" or to in found:
                raise KeyError(to)
            found[to] = shape
    return c, n, found


def key(name):
    m = re.match(r"blk\.(\d+)\.", name)
    return (int(m[1]) if m else -1, name)


def main(folder, models):
    base, lib, new, start, types = load(folder)
    with open(models) as f:
        models = json.load(f)
    lines = []
    for repository, arch in MODELS.items():
        if repository not in models:
            print("not in models.json:", repository)
            continue
        try:
            c, n, found = tensors(models[repository]["config"], arch)
        except Exception as e:
            print("left out:", repository, repr(e)[:200])
            continue
        heads = getattr(c, "num_attention_heads", None) or getattr(c, "n_head", None) or getattr(c, "n_heads", None) or 0
        kv = getattr(c, "num_key_value_heads", None) or heads
        if arch == "falcon":
            kv = (c.num_kv_heads if c.new_decoder_architecture else 1)
        if arch == "deepseek2":
            kv = 1  # the converter writes latent attention as that of one head
        expert = next((v for k in ("num_local_experts", "n_routed_experts", "num_experts") if (v := getattr(c, k, None))), 0)
        # Loading a model of 80 blocks makes Qwen2 a "70B" as it makes Llama, which the description of a model does for Llama alone.
        as_arch = "llama" if arch == "qwen2" and n == 80 else arch
        desc = Desc(as_arch.encode(), c.hidden_size, 1, n, heads, kv, expert, 64, 64)
        ordered = sorted(found, key=key)
        ctx = base.ggml_init(Init(1 << 26, None, True))
        at = (ctypes.c_void_p * len(ordered))()
        for i, name in enumerate(ordered):
            shape = list(reversed(found[name])) or [1]
            if "conv1d" in name or "shortconv.conv" in name:
                shape = [s for s in shape if s > 1]
            float32 = len(shape) == 1 or FLOAT32.search(name)
            at[i] = base.ggml_new_tensor(ctx, 0 if float32 else 30, len(shape), (ctypes.c_int64 * len(shape))(*shape))
            base.ggml_set_name(at[i], name.encode())
        sizes = {}
        for ftype, number in FTYPES.items():
            p = lib.llama_model_quantize_default_params()
            p.ftype = number
            state = start(new(ctypes.byref(desc)), ctypes.byref(p))
            result = (ctypes.c_int * len(ordered))()
            types(state, number, at, result, len(ordered))
            total = 0
            for i, name in enumerate(ordered):
                shape = list(reversed(found[name])) or [1]
                rows = 1
                for s in shape[1:]:
                    rows *= s
                total += base.ggml_row_size(result[i], shape[0]) * rows
            sizes[ftype] = total
        base.ggml_free(ctx)
        lines.append(json.dumps(repository) + ": " + json.dumps(sizes))
        print(repository, sizes["Q4_K_M"], len(ordered), flush=True)
    with open("quantized.json", "w") as f:
        f.write('{"llama.cpp": "v0.5.0", "models": {\n' + ",\n".join(lines) + "\n}}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
