"""Measure tensor and sequence parallelism, for the tests of package estimate.

    python sequence_parallel.py > sequence_parallel.json

A small Llama runs on two processes of the CPU, as torchtitan 0.2 splits one (models/llama3/infra/parallelize.py,
apply_tp): embedding, attention, MLP and head by DTensor, norms on the part of the tokens that each process has.
Without sequence parallelism every process has all tokens outside of these. saved_bytes are those that autograd
keeps on the first process, each storage once, without parameters.
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import torch
import torch.multiprocessing as mp
import transformers as T
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module

DEVICES, BATCH, LENGTH = 2, 2, 256
SIZES = dict(vocab_size=1000, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2)


def storages(tensors):
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


def local(t):
    return t.to_local() if isinstance(t, DTensor) else t


def saved_bytes(model, step):
    kept = {}

    def pack(t):
        kept.update(storages([local(t)]))
        held.append(t)
        return t

    held = []
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        step()
    for address in storages([local(p) for p in [*model.parameters(), *model.buffers()]]):
        kept.pop(address, None)
    return sum(kept.values())


def parallelize(model, mesh, sequence):
    tokens = Shard(1) if sequence else Replicate()
    norm = {"norm": SequenceParallel()} if sequence else {}
    parallelize_module(model.model, mesh, {"embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=tokens), **norm})
    parallelize_module(model, mesh, {"lm_head": ColwiseParallel(input_layouts=tokens, output_layouts=Shard(-1))})
    for layer in model.model.layers:
        layer.self_attn.config = model.config
        plan = {
            "self_attn": PrepareModuleInput(input_kwarg_layouts={"hidden_states": tokens}, desired_input_kwarg_layouts={"hidden_states": Replicate()}),
            "self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(), "self_attn.v_proj": ColwiseParallel(),
            "self_attn.o_proj": RowwiseParallel(output_layouts=tokens),
            "mlp": PrepareModuleInput(input_layouts=(tokens,), desired_input_layouts=(Replicate(),)),
            "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel(output_layouts=tokens),
        }
        if sequence:
            plan.update({"input_layernorm": SequenceParallel(), "post_attention_layernorm": SequenceParallel()})
        parallelize_module(layer, mesh, plan)


def run(rank, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29513", RANK=str(rank), WORLD_SIZE=str(DEVICES))
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (DEVICES,))
    measured = {}
    for sequence in (False, True):
        torch.manual_seed(0)
        model = T.LlamaForCausalLM(T.LlamaConfig(**SIZES, use_cache=False)).to(torch.bfloat16)
        parallelize(model, mesh, sequence)
        words, positions = torch.randint(0, 1000, (BATCH, LENGTH)), torch.arange(LENGTH)[None]
        measured["sequence" if sequence else "tensor"] = saved_bytes(model, lambda: model(words, position_ids=positions))
    if rank == 0:
        with open(results, "w") as f:
            json.dump(measured, f)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    path = f"/tmp/sequence_parallel.{os.getpid()}.json"
    mp.spawn(run, (path,), DEVICES)
    with open(path) as f:
        measured = json.load(f)
    os.remove(path)
    json.dump({"torch": torch.__version__, "transformers": T.__version__, "devices": DEVICES, "batch": BATCH, "length": LENGTH, "saved_bytes": measured}, sys.stdout, indent=1)
    print()
