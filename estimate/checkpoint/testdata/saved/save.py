"""Writes the small checkpoints of this folder with PyTorch's own writers.

    python save.py

Made with torch 2.15.0, transformers 5.24.0 and safetensors 0.8 on the CPU. saved.json has what
torch.load says of each: the tensors' number, their elements and the bytes of their storages.
"""

import json
import os
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.fsdp import fully_shard

HERE = os.path.dirname(os.path.abspath(__file__))


class Model(nn.Module):
    """Two layers; the head is the embedding."""

    def __init__(self, dtype=torch.bfloat16):
        super().__init__()
        self.embed = nn.Embedding(24, 8, dtype=dtype)
        self.up = nn.Linear(8, 18, dtype=dtype)
        self.norm = nn.BatchNorm1d(18, dtype=torch.float32)
        self.down = nn.Linear(18, 8, bias=False, dtype=dtype)
        self.head = nn.Linear(8, 24, bias=False, dtype=dtype)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        x = self.norm(self.up(x).float()).to(x.dtype)
        return self.head(self.down(x))


def trained():
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.arange(6)).float().sum().backward()
    optimizer.step()
    return model, optimizer


def storages(tensors):
    held = {}
    for t in tensors:
        held[t.untyped_storage()._cdata] = t.untyped_storage().nbytes()
    return sum(held.values())


def single():
    model, optimizer = trained()
    torch.save(model.state_dict(), f"{HERE}/state_dict.pt")
    torch.save({"epoch": 3, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "loss": 0.5,
                "rng": torch.get_rng_state()[:64].clone()}, f"{HERE}/training.pt")
    torch.save(model, f"{HERE}/module.pt")
    torch.save(model.state_dict(), f"{HERE}/legacy.pt", _use_new_zipfile_serialization=False)
    base = torch.arange(40, dtype=torch.float32)
    torch.save({
        "view": base[8:16], "transposed": base.view(5, 8).t(), "scalar": torch.tensor(3, dtype=torch.int64),
        "complex": torch.zeros(2, dtype=torch.complex64), "eight": torch.zeros(3, dtype=torch.float8_e4m3fn),
        "flags": torch.zeros(3, dtype=torch.bool), "sixteen": torch.zeros(3, dtype=torch.uint16),
        "param": nn.Parameter(torch.zeros(2, 2, dtype=torch.float16)), "empty": torch.zeros(0, 7),
        "meta": torch.zeros(4, 4, device="meta"),
    }, f"{HERE}/views.pt")
    torch.save({"packed": torch.quantize_per_channel(torch.zeros(4, 6), torch.ones(4), torch.zeros(4), 0, torch.qint8),
                "plain": torch.zeros(3)}, f"{HERE}/quantized.pt")


def sharded_bin():
    folder = f"{HERE}/sharded_bin"
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    state = {k: v.clone() for k, v in trained()[0].state_dict().items()}
    names = list(state)
    halves = {"pytorch_model-00001-of-00002.bin": names[:3], "pytorch_model-00002-of-00002.bin": names[3:]}
    for file, keys in halves.items():
        torch.save({k: state[k] for k in keys}, f"{folder}/{file}")
    weight_map = {k: file for file, keys in halves.items() for k in keys}
    total = sum(t.nbytes for t in state.values())
    with open(f"{folder}/pytorch_model.bin.index.json", "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f, indent=2)
    with open(f"{folder}/config.json", "w") as f:
        json.dump({"model_type": "nobody_has_this", "hidden_size": 8}, f)


def unknown():
    from safetensors.torch import save_file
    folder = f"{HERE}/unknown"
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    state = {k: v.clone() for k, v in trained()[0].state_dict().items()}
    save_file(state, f"{folder}/model.safetensors", {"format": "pt"})
    with open(f"{folder}/config.json", "w") as f:
        json.dump({"model_type": "nobody_has_this", "hidden_size": 8}, f)


def rank(rank, port):
    os.chdir(HERE)  # the files have the path as it is given
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(17, 33, dtype=torch.bfloat16), nn.LayerNorm(33), nn.Linear(33, 9, bias=False, dtype=torch.bfloat16))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7}
    dcp.save(state, checkpoint_id="dcp")
    dcp.save(model.state_dict(), checkpoint_id="dcp_model")
    writer = HuggingFaceStorageWriter(path="dcp_safetensors", save_distributed=True)
    dcp.save(model.state_dict(), storage_writer=writer)
    dist.barrier()
    dist.destroy_process_group()


def distributed():
    for folder in "dcp", "dcp_model", "dcp_safetensors":
        shutil.rmtree(f"{HERE}/{folder}", ignore_errors=True)
    mp.spawn(rank, args=(29000 + os.getpid() % 2000,), nprocs=2)
    for piece in "__0_0.distcp", "__1_0.distcp":  # .metadata has what is read
        os.remove(f"{HERE}/dcp/{piece}")


def summary():
    files = {}
    for name in "state_dict.pt", "training.pt", "views.pt", "quantized.pt":
        loaded = torch.load(f"{HERE}/{name}", weights_only=False)
        tensors = []

        def walk(v):
            if isinstance(v, torch.Tensor):
                tensors.append(v)
            elif isinstance(v, dict):
                [walk(x) for x in v.values()]
            elif isinstance(v, (list, tuple)):
                [walk(x) for x in v]

        walk(loaded)
        files[name] = {"tensors": len(tensors), "elements": sum(t.numel() for t in tensors),
                       "bytes": storages(t for t in tensors if not t.is_meta)}
    with open(f"{HERE}/saved.json", "w") as f:
        json.dump({"torch": torch.__version__, "files": files}, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    single()
    sharded_bin()
    unknown()
    distributed()
    summary()
