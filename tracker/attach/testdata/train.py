# Trains a small model on the CPU under PyTorch's profiler, then prints which blocks are live by the profiler's trace, and waits for
# the end of its input.
import json, os, sys, tempfile

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 256)
        self.second = nn.Linear(256, 10)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


kept = []


def train(steps):
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(steps):
        x = torch.randn(32, 64)
        y = torch.randint(0, 10, (32,))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(keep(step))
    return model, optimizer, x, y, loss


def keep(step):
    return torch.empty(1000 + step)


with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
    held = train(int(sys.argv[1]))
path = tempfile.mktemp()
profiler.export_chrome_trace(path)
with open(path) as file:
    events = [e for e in json.load(file)["traceEvents"] if e.get("name") == "[memory]"]
os.unlink(path)
live = {}
for event in sorted(events, key=lambda e: e["ts"]):
    its = event["args"]
    if its["Bytes"] > 0:
        live[its["Addr"]] = its["Bytes"]
    else:
        live.pop(its["Addr"], None)
for at, size in live.items():
    print("live %x %d" % (at, size))
print("done", flush=True)
sys.stdin.read()
