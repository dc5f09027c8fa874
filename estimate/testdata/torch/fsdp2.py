"""Measure training under FSDP2, for the tests of package estimate.

    python fsdp2.py > fsdp2.json

A small Llama trains as one of four processes on the CPU. Their collectives do nothing (PyTorch's fake process group),
but memory is allocated as with any others. cpu_training_peak_bytes is the most that is alive at once in a step, above
what was there before it, by the profiler's record. "root": fully_shard of each block and of the model. "ends": the
embedding is a unit of its own, and the norm with the head, as torchtitan 0.3 makes them (distributed/fsdp.py).
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import torch
import torch.distributed as dist
import transformers as T
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

from measure import cpu_peak

DEVICES, BATCH, LENGTH = 4, 2, 64
SIZES = dict(vocab_size=1000, hidden_size=512, intermediate_size=1376, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2)


def build(ends, policy, checkpoints):
    torch.manual_seed(0)
    model = T.LlamaForCausalLM(T.LlamaConfig(**SIZES, use_cache=False))
    if checkpoints:
        for block in model.model.layers:
            block.forward = (lambda run: lambda *a, **k: checkpoint(run, *a, use_reentrant=False, **k))(block.forward)
    mesh = init_device_mesh("cpu", (DEVICES,))
    options = dict(mesh=mesh, mp_policy=policy)
    if ends:
        fully_shard(model.model.embed_tokens, **options)
        fully_shard([model.model.norm, model.lm_head], **options, reshard_after_forward=False)
    for block in model.model.layers:
        fully_shard(block, **options)
    fully_shard(model, **options)
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
    return model


def main():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=DEVICES)
    words, result = torch.randint(0, 1000, (BATCH, LENGTH)), {}
    narrow = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for name, ends, policy, checkpoints in [("root", False, MixedPrecisionPolicy(), False), ("ends", True, narrow, False), ("checkpointed", True, narrow, True)]:
        model = build(ends, policy, checkpoints)

        def step():
            model(words, labels=words).loss.backward()
            for p in model.parameters():
                p.grad = None

        step()
        result[name] = {"cpu_training_peak_bytes": cpu_peak(step)}
        print(name, result[name], file=sys.stderr)
    json.dump({"torch": torch.__version__, "transformers": T.__version__, "devices": DEVICES, "batch": BATCH, "length": LENGTH, "runs": result}, sys.stdout, indent=1)
    print()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
