"""Measure what PyTorch needs for known models, for the tests of package estimate.

    python measure.py [model ...] > cpu.json

It needs torch, torchvision and transformers, builds every model from its
configuration without weights, and measures on the CPU: parameters, buffers, the
output's shape of each leaf module, the bytes that autograd keeps for the
backward pass (unique storages seen by saved-tensor hooks, without parameters
and buffers), and the most memory alive at once in a forward pass and in a
training step with Adam (from the profiler's record of each allocation and free).
With --cuda it measures the same peaks with torch.cuda.max_memory_allocated.
The models named "tiny" are their families' in small; they are measured in
bfloat16 and with checkpointed blocks too.

The names of models may be followed by the JSON that an earlier run wrote, whose
other models are then kept.
"""

import gc
import json
import os
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import torch
import torchvision
import transformers
from torch import nn
from torchvision import models

IMAGE = (3, 224, 224)


def llama(cls, config, **sizes):
    base = dict(vocab_size=1000, max_position_embeddings=4096, attention_dropout=0.0)
    return lambda: cls(config(**{**base, **sizes}))


T = transformers
ZOO = {name: (lambda name=name: getattr(models, name)(), IMAGE) for name in [
    "vgg11", "vgg16_bn", "vgg19", "resnet18", "resnet50", "resnet152", "resnext50_32x4d",
    "wide_resnet50_2", "densenet121", "mobilenet_v2", "efficientnet_b0",
    "densenet201", "mobilenet_v3_large", "convnext_tiny", "swin_t",
]}
ZOO.update({
    "vit-b-16": (lambda: T.ViTForImageClassification(T.ViTConfig(num_labels=1000)), IMAGE),
    "bert-base-uncased": (lambda: T.BertModel(T.BertConfig()), (128,)),
    "gpt2": (lambda: T.GPT2LMHeadModel(T.GPT2Config()), (128,)),
    "llama-tiny": (llama(T.LlamaForCausalLM, T.LlamaConfig, hidden_size=256, intermediate_size=688,
                         num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2), (256,)),
    "mixtral-tiny": (llama(T.MixtralForCausalLM, T.MixtralConfig, hidden_size=256, intermediate_size=512,
                           num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
                           num_local_experts=8, num_experts_per_tok=2), (256,)),
    "qwen2-tiny": (llama(T.Qwen2ForCausalLM, T.Qwen2Config, hidden_size=256, intermediate_size=688,
                         num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
                         tie_word_embeddings=True), (256,)),
    "gemma-tiny": (llama(T.GemmaForCausalLM, T.GemmaConfig, hidden_size=256, intermediate_size=1024, head_dim=64,
                         num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=1), (256,)),
    "phi-tiny": (llama(T.PhiForCausalLM, T.PhiConfig, hidden_size=256, intermediate_size=1024,
                       num_hidden_layers=2, num_attention_heads=8, partial_rotary_factor=0.5,
                       resid_pdrop=0.0), (256,)),
    "qwen3-tiny": (llama(T.Qwen3ForCausalLM, T.Qwen3Config, hidden_size=256, intermediate_size=688, head_dim=64,
                         num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2), (256,)),
    "qwen3-moe-tiny": (llama(T.Qwen3MoeForCausalLM, T.Qwen3MoeConfig, hidden_size=256, intermediate_size=688, head_dim=64,
                             num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2, norm_topk_prob=True,
                             num_experts=8, num_experts_per_tok=2, moe_intermediate_size=192,
                             mlp_only_layers=[0]), (256,)),
    # Values as large as keys, as for other values PyTorch has no flash attention on the CPU.
    "deepseek-v3-tiny": (llama(T.DeepseekV3ForCausalLM, T.DeepseekV3Config, hidden_size=256, intermediate_size=688,
                               num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=8, first_k_dense_replace=1,
                               q_lora_rank=96, kv_lora_rank=64, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=32,
                               n_routed_experts=8, num_experts_per_tok=2, n_group=2, topk_group=1,
                               moe_intermediate_size=192), (256,)),
    "gpt-oss-tiny": (llama(T.GptOssForCausalLM, T.GptOssConfig, hidden_size=256, intermediate_size=192, head_dim=64,
                           num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
                           num_local_experts=8, num_experts_per_tok=2), (256,)),
    "olmo2-tiny": (llama(T.Olmo2ForCausalLM, T.Olmo2Config, hidden_size=256, intermediate_size=688,
                         num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2), (256,)),
    "gemma2-tiny": (llama(T.Gemma2ForCausalLM, T.Gemma2Config, hidden_size=256, intermediate_size=1024, head_dim=64,
                          num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2), (256,)),
    "gemma3-tiny": (llama(T.Gemma3ForCausalLM, T.Gemma3TextConfig, hidden_size=256, intermediate_size=1024, head_dim=64,
                          num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
                          layer_types=["sliding_attention", "full_attention"]), (256,)),
    "phi3-tiny": (llama(T.Phi3ForCausalLM, T.Phi3Config, hidden_size=256, intermediate_size=688, pad_token_id=0,
                        num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2), (256,)),
})
ZOO.update({
    "rnn": (lambda: nn.RNN(64, 96, num_layers=2, batch_first=True), (20, 64)),
    "gru": (lambda: nn.GRU(64, 96, batch_first=True, bidirectional=True), (20, 64)),
    "lstm": (lambda: nn.LSTM(64, 96, num_layers=2, batch_first=True), (20, 64)),
    "lstm-bidirectional": (lambda: nn.LSTM(64, 96, batch_first=True, bidirectional=True), (20, 64)),
})
BATCHES = {name: (1, 2) for name in ["resnet152", "gpt2", "vgg16_bn", "vgg19", "wide_resnet50_2", "densenet121",
                                   "densenet201", "mobilenet_v3_large", "convnext_tiny", "swin_t"]}
VARIANTS = [{"dtype": "bfloat16"}, {"checkpointed": True}]


def inputs(size, batch, device="cpu"):
    if len(size) == 1:
        return torch.randint(0, 1000, (batch, *size), device=device)
    return torch.randn(batch, *size, device=device)


def run(model, x):
    if isinstance(model, T.PreTrainedModel):
        kwargs = {"use_cache": False} if "use_cache" in model.config.to_dict() and x.dtype == torch.int64 else {}
        out = model(x, return_dict=True, **kwargs)
        for name in ("logits", "pooler_output"):
            if getattr(out, name, None) is not None:
                return getattr(out, name)
        return out[0]
    out = model(x)
    return out[0] if isinstance(out, tuple) else out


def storage(t):
    return t.untyped_storage()


def saved_bytes(model, x):
    """The bytes of unique storages that autograd keeps, parameters and buffers left out."""
    own = {storage(t).data_ptr() for t in [*model.parameters(), *model.buffers()]}
    seen = {}

    def pack(t):
        s = storage(t)
        if s.data_ptr() not in own:
            seen[s.data_ptr()] = s.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = run(model, x)
        total = sum(seen.values())
        del out
    return total


def leaf_shapes(model, x):
    shapes, hooks = [], []
    for name, module in model.named_modules():
        if not any(module.children()):
            hooks.append(module.register_forward_hook(
                lambda m, i, o, name=name: shapes.append([name, list(o.shape)]) if torch.is_tensor(o) else None))
    run(model, x)
    for h in hooks:
        h.remove()
    return shapes


def cpu_peak(step):
    """The most bytes alive at once above the beginning, by the profiler's record."""
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as prof:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        prof.export_chrome_trace(path)
        with open(path) as f:
            events = json.load(f)["traceEvents"]
    memory = sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"])
    live = top = 0
    for e in memory:
        live += e["args"]["Bytes"]
        top = max(top, live)
    return top


def training_step(model, x, optimizer):
    out = run(model, x)
    out.backward(torch.ones_like(out))  # as large as the output; both are held, as in most training loops
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def measure(name, build, size):
    torch.manual_seed(0)
    model = build()
    leaves = {}
    result = {
        "params": sum(p.numel() for p in model.parameters()),
        "param_bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
        "runs": [],
    }
    named = dict(model.named_buffers())
    result["buffers"] = sum(b.numel() for b in named.values())
    result["buffer_bytes"] = sum(b.numel() * b.element_size() for b in named.values())
    plain = [(batch, {}) for batch in BATCHES.get(name, (1, 2, 4))]
    for batch, variant in plain + [(2, v) for v in VARIANTS if name.endswith("-tiny")]:
        x = inputs(size, batch)
        if variant.get("dtype"):
            model.to(getattr(torch, variant["dtype"]))
        if variant.get("checkpointed"):
            model = build()
            model.activation_checkpointing_enable()
        model.train()
        entry = {"input": list(x.shape), **variant, "saved_bytes": saved_bytes(model, x)}
        if not leaves:
            with torch.no_grad():
                leaves = leaf_shapes(model, x)
            result["leaves_input"] = list(x.shape)
        optimizer = torch.optim.Adam(model.parameters())
        training_step(model, x, optimizer)  # makes the states
        entry["cpu_training_peak_bytes"] = cpu_peak(lambda: training_step(model, x, optimizer))
        del optimizer
        model.eval()
        with torch.no_grad():
            run(model, x)
            entry["cpu_inference_peak_bytes"] = cpu_peak(lambda: run(model, x))
        result["runs"].append(entry)
        model.train()
        print(name, entry, file=sys.stderr, flush=True)
    result["leaves"] = leaves
    return result


def cuda(name, build, size):
    """Peaks of a whole process's tensors on the GPU: weights, states and input included."""
    runs = []
    for batch in (1, 8, 32):
        torch.manual_seed(0)
        model = build().cuda()
        x = inputs(size, batch, "cuda")
        model.eval()
        torch.cuda.synchronize()
        with torch.no_grad():
            run(model, x)
            torch.cuda.reset_peak_memory_stats()
            run(model, x)
        inference = torch.cuda.max_memory_allocated()
        model.train()
        optimizer = torch.optim.Adam(model.parameters())
        training_step(model, x, optimizer)
        torch.cuda.reset_peak_memory_stats()
        training_step(model, x, optimizer)
        runs.append({
            "input": list(x.shape),
            "cuda_inference_peak_bytes": inference,
            "cuda_training_peak_bytes": torch.cuda.max_memory_allocated(),
        })
        del model, optimizer, x
        gc.collect()
        torch.cuda.empty_cache()
    return {"runs": runs}


def main(args):
    on_gpu = "--cuda" in args
    earlier = [a for a in args if a.endswith(".json")]
    wanted = [a for a in args if not a.startswith("--") and a not in earlier] or list(ZOO)
    result = {
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "models": {},
    }
    for path in earlier:
        with open(path) as f:
            known = json.load(f)
        if any(known[k] != result[k] for k in ("torch", "torchvision", "transformers", "device")):
            sys.exit(f"{path} was measured with other versions")
        result["models"].update(known["models"])
    for name in wanted:
        build, size = ZOO[name]
        result["models"][name] = (cuda if on_gpu else measure)(name, build, size)
        gc.collect()
    # One model to a line keeps the file small and its changes readable.
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in result.pop("models").items())
    head = json.dumps(result)[:-1]
    print(f'{head}, "models": {{\n{lines}\n}}}}')


if __name__ == "__main__":
    main(sys.argv[1:])
