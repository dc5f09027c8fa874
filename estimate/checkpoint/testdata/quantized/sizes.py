"""Writes sizes.json: what small models take once libraries have packed their weights, for TestQuantizedConfigs.

Each case is a config.json with its quantization_config, and the bytes of all parameters with what the library stores beside
them. The models are declared without memory where the library allows it, and packed on the CPU where it does not.

Run with torch 2.15.0, transformers 5.24.0, compressed-tensors 0.20.1, bitsandbytes 0.50.2, torchao 0.18.0,
optimum-quanto 0.2.7 and hqq 0.2.8.post1: python sizes.py
"""

import contextlib
import copy
import io
import json
import os

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

LLAMA = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=256, intermediate_size=672, num_hidden_layers=3,
             num_attention_heads=8, num_key_value_heads=2, vocab_size=320, max_position_embeddings=512, tie_word_embeddings=False)
BIASED = dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_size=192, intermediate_size=400, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, vocab_size=320, max_position_embeddings=512, tie_word_embeddings=True,
              use_sliding_window=False)
MIXTURE = dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], hidden_size=256, intermediate_size=512,
               moe_intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=64, vocab_size=320,
               num_experts=8, num_experts_per_tok=2, max_position_embeddings=512, tie_word_embeddings=False,
               decoder_sparse_step=1, mlp_only_layers=[])
BASES = {"llama": LLAMA, "biased": BIASED, "mixture": MIXTURE}


def built(name, device):
    of = dict(BASES[name])
    kind = of.pop("model_type")
    with torch.device(device):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **of), dtype=torch.bfloat16)


def leaves(t):
    """The plain tensors of which a tensor of a library is made."""
    t = t.data if type(t) is torch.nn.Parameter else t
    if type(t) not in (torch.Tensor, torch.nn.Parameter) and hasattr(t, "__tensor_flatten__"):
        return [x for n in t.__tensor_flatten__()[0] for x in leaves(getattr(t, n))]
    return [t]


def bytes_of(tensors):
    return sum(x.numel() * x.element_size() for t in tensors for x in leaves(t))


def stored(model):
    """All parameters, and the buffers of layers that a library has put in."""
    tensors = list(model.parameters())
    for m in model.modules():
        if type(m).__module__.startswith("transformers.integrations"):
            tensors += [b for n, b in m.named_buffers(recurse=False) if n not in m._non_persistent_buffers_set]
    return bytes_of(tensors)


def by_transformers(q, base):
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils import quantization_config as qc

    torch.set_default_dtype(torch.bfloat16)  # as loading does
    model = built(base, "meta")
    method = q["quant_method"]
    args = {k: v for k, v in q.items() if k != "quant_method"}
    skip = HfQuantizer.get_modules_to_not_convert(model, q.get("modules_to_not_convert"), model._keep_in_fp32_modules)
    if method == "fp8":
        from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear

        replace_with_fp8_linear(model, skip, qc.FineGrainedFP8Config(**args), True)
    elif method == "bitnet":
        from transformers.integrations.bitnet import replace_with_bitnet_linear

        replace_with_bitnet_linear(model, skip, qc.BitNetQuantConfig(**args))
    elif method == "higgs":
        from transformers.integrations.higgs import HiggsLinear
        from transformers.quantizers.quantizers_utils import should_convert_module

        for name, m in list(model.named_modules()):
            if isinstance(m, torch.nn.Linear) and should_convert_module(name, skip):
                model.set_submodule(name, HiggsLinear(m.in_features, m.out_features, q.get("bits", 4), m.bias is not None, m.weight.dtype,
                                                     "meta", q.get("group_size", 256)))
    torch.set_default_dtype(torch.float32)
    return stored(model)


def by_bitsandbytes(q, base):
    import bitsandbytes as bnb
    from transformers.quantizers.base import HfQuantizer
    from transformers.quantizers.quantizers_utils import should_convert_module

    model = built(base, "cpu")
    skip = HfQuantizer.get_modules_to_not_convert(model, q.get("llm_int8_skip_modules"), model._keep_in_fp32_modules)
    total = 0
    for name, m in model.named_modules():
        for p in m.parameters(recurse=False):
            if not (isinstance(m, torch.nn.Linear) and should_convert_module(name, skip) and p is m.weight):
                total += bytes_of([p])
        if not isinstance(m, torch.nn.Linear) or not should_convert_module(name, skip):
            continue
        if q.get("load_in_8bit"):
            out, scb, _ = bnb.functional.int8_vectorwise_quant(m.weight.data.to(torch.float16))
            total += bytes_of([out, scb])
            continue
        packed, s = bnb.functional.quantize_4bit(m.weight.data, blocksize=64, compress_statistics=q["bnb_4bit_use_double_quant"], quant_type="nf4")
        of = [packed, s.absmax, s.code]
        if s.nested:
            of += [s.offset, s.state2.absmax, s.state2.code]
        total += bytes_of(of)
    if model.config.tie_word_embeddings:
        total -= bytes_of([model.lm_head.weight])
    return total


def by_compressed_tensors(q, base):
    """The library packs linear layers; those of experts are made of the fused tensors, as files have them."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    model = built(base, "cpu")
    for name, m in list(model.named_modules()):
        if name.endswith(".experts"):
            hidden, ffn = m.down_proj.shape[1:]
            listed = torch.nn.ModuleList()
            for _ in range(m.down_proj.shape[0]):
                e = torch.nn.Module()
                for of, i, o in (("gate_proj", hidden, ffn), ("up_proj", hidden, ffn), ("down_proj", ffn, hidden)):
                    setattr(e, of, torch.nn.Linear(i, o, bias=False, dtype=torch.bfloat16))
                listed.append(e)
            model.set_submodule(name, listed)
    c = QuantizationConfig.model_validate({k: v for k, v in copy.deepcopy(q).items() if k != "sparsity_config"})
    apply_quantization_config(model, c, run_compressed=False)
    ModelCompressor(quantization_config=c).compress_model(model)
    return bytes_of(model.parameters())


def by_torchao(q, base):
    import torchao.quantization as ao

    model = built(base, "cpu")
    ao.quantize_(model.model, getattr(ao, q["quant_type"]["default"]["_type"])())
    return bytes_of(model.parameters())


def by_quanto(q, base):
    from optimum.quanto import freeze, qfloat8, qint2, qint4, qint8, quantize

    model = built(base, "cpu")
    quantize(model.model, weights={"int8": qint8, "int4": qint4, "int2": qint2, "float8": qfloat8}[q["weights"]])
    freeze(model.model)
    kept = [t for n, t in model.state_dict().items() if n != "lm_head.weight" or not model.config.tie_word_embeddings]
    return bytes_of(kept)


def by_hqq(q, base):
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    model = built(base, "cpu")
    w = q["quant_config"]["weight_quant_params"]
    total = 0
    for name, m in model.named_modules():
        if isinstance(m, torch.nn.Linear) and name not in q["skip_modules"]:
            h = HQQLinear(m, BaseQuantizeConfig(nbits=w["nbits"], group_size=w["group_size"]), compute_dtype=torch.bfloat16, device="cpu", del_orig=False)
            total += bytes_of([h.W_q, h.meta["scale"], h.meta["zero"]])
            total += bytes_of([m.bias]) if m.bias is not None else 0
        elif name != "lm_head" or not model.config.tie_word_embeddings:
            total += bytes_of(m.parameters(recurse=False))
    return total


def weights(bits, kind="int", **more):
    return dict(num_bits=bits, type=kind, symmetric=True, strategy="channel", group_size=None, dynamic=False, block_structure=None, actorder=None) | more


def tensors(format, group, ignore=("lm_head",), **more):
    return dict(quant_method="compressed-tensors", format=format, quantization_status="compressed", ignore=list(ignore),
                config_groups={"group_0": dict(targets=["Linear"], input_activations=None, output_activations=None) | group}) | more


FP8_IN = weights(8, "float", strategy="tensor")
TOKENS = weights(8, "float", strategy="token", dynamic=True)
CASES = [
    (by_transformers, [
        dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[128, 128]),
        dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[128, 128], scale_fmt="ue8m0"),
        dict(quant_method="fp8", activation_scheme="static", weight_block_size=None),
        dict(quant_method="fp8", modules_to_not_convert=["lm_head", "model.layers.0.self_attn", "down_proj"]),
        dict(quant_method="fp8", modules_to_not_convert=["lm_head", r"model.layers.\d+.mlp"]),
    ], ["llama", "biased", "mixture"]),
    (by_transformers, [
        dict(quant_method="bitnet"), dict(quant_method="higgs", bits=4, group_size=16), dict(quant_method="higgs", bits=2, group_size=32),
    ], ["llama"]),
    (by_bitsandbytes, [
        dict(quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=False),
        dict(quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
        dict(quant_method="bitsandbytes", load_in_8bit=True, llm_int8_skip_modules=["lm_head", "v_proj"]),
    ], ["llama", "biased"]),
    (by_compressed_tensors, [
        tensors("pack-quantized", dict(weights=weights(4, strategy="group", group_size=16))),
        tensors("pack-quantized", dict(weights=weights(4, strategy="group", group_size=32, symmetric=False)), ["lm_head", "re:.*self_attn.*"]),
        tensors("pack-quantized", dict(weights=weights(8))),
        tensors("pack-quantized", dict(weights=weights(4, symmetric=False)), ["re:.*lm_head", "model.layers.1.mlp.down_proj"]),
        tensors("pack-quantized", dict(weights=weights(3, strategy="group", group_size=32))),
        tensors("int-quantized", dict(weights=weights(8), input_activations=weights(8, strategy="token", dynamic=True))),
        tensors("int-quantized", dict(weights=weights(8, symmetric=False), input_activations=weights(8, strategy="tensor", symmetric=False))),
        tensors("float-quantized", dict(weights=weights(8, "float"), input_activations=TOKENS)),
        tensors("float-quantized", dict(weights=weights(8, "float", strategy="tensor"), input_activations=FP8_IN)),
        tensors("float-quantized", dict(weights=weights(8, "float", strategy="block", block_structure=[128, 128]),
                                        input_activations=weights(8, "float", strategy="group", group_size=128, dynamic=True))),
        tensors("nvfp4-pack-quantized", dict(weights=weights(4, "float", strategy="tensor_group", group_size=16, scale_dtype="torch.float8_e4m3fn"),
                                             input_activations=weights(4, "float", strategy="tensor_group", group_size=16, dynamic="local", scale_dtype="torch.float8_e4m3fn"))),
        tensors("nvfp4-pack-quantized", dict(weights=weights(4, "float", strategy="tensor_group", group_size=16, scale_dtype="torch.float8_e4m3fn"))),
        tensors("mxfp4-pack-quantized", dict(weights=weights(4, "float", strategy="group", group_size=32, scale_dtype="torch.uint8"))),
        tensors("mxfp8-quantized", dict(weights=weights(8, "float", strategy="group", group_size=32, scale_dtype="torch.uint8"))),
        dict(quant_method="compressed-tensors", format="mixed-precision", quantization_status="compressed", ignore=["lm_head"], config_groups={
            "group_0": dict(targets=["re:.*(self_attn|down_proj).*"], weights=weights(8, "float"), input_activations=TOKENS, format="float-quantized"),
            "group_1": dict(targets=["re:.*(gate|up)_proj$"], weights=weights(4, strategy="group", group_size=64), format="pack-quantized")}),
    ], ["llama", "mixture"]),
    (by_torchao, [dict(quant_method="torchao", quant_type={"default": {"_type": t, "_data": {}}})
                  for t in ("Int8WeightOnlyConfig", "Float8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig")], ["llama"]),
    (by_quanto, [dict(quant_method="quanto", weights=w, activations=None) for w in ("int8", "int4", "int2", "float8")], ["llama"]),
    (by_hqq, [dict(quant_method="hqq", skip_modules=["lm_head"], quant_config={"weight_quant_params": {"nbits": b, "group_size": g}})
              for b, g in ((4, 64), (8, 128), (3, 64), (2, 16), (1, 32))], ["llama", "biased"]),
]

if __name__ == "__main__":
    cases = []
    for by, configs, bases in CASES:
        for base in bases:
            for q in configs:
                try:
                    with contextlib.redirect_stderr(io.StringIO()):
                        n = by(copy.deepcopy(q), base)
                except Exception as e:
                    print("left out:", base, json.dumps(q)[:150], repr(e)[:300])
                    continue
                cases.append({"base": base, "quantization_config": q, "bytes": n})
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "sizes.json"), "w") as f:
        f.write(json.dumps({"transformers": transformers.__version__, "bases": BASES, "cases": []})[:-3] + "[\n")
        f.write(",\n".join(json.dumps(c) for c in cases) + "\n]}\n")
    print(len(cases), "cases")
