"""Measure the losses of language models, for the tests of package estimate.

    python losses.py > losses.json

A projection and a head in bfloat16 run over a text, then the loss. saved_bytes are those that
autograd keeps, each storage once, without parameters; cpu_training_peak_bytes is the most that
is alive at once during forward and backward, by the profiler's record. compiled is
torch.compile's on the CPU, of which the kept bytes alone are compared.
"""

import json
import sys

import torch
import torch.nn.functional as F

from measure import cpu_peak, saved_bytes

BATCH, LENGTH, HIDDEN, VOCAB, CHUNKS = 2, 256, 128, 4096, 8


class Model(torch.nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.body, self.head, self.loss = torch.nn.Linear(HIDDEN, HIDDEN, bias=False), torch.nn.Linear(HIDDEN, VOCAB, bias=False), loss
        self.targets = torch.randint(0, VOCAB, (BATCH, LENGTH))

    def forward(self, x):
        return self.loss(self.head, self.body(x), self.targets)


def whole(head, x, targets):
    """As transformers' ForCausalLMLoss of 4.46, which has variables of all copies of the logits."""
    logits = head(x)
    wide = logits.float()
    shifted = wide[:, :-1].contiguous()
    return F.cross_entropy(shifted.view(-1, VOCAB), targets[:, 1:].reshape(-1))


def labelled(head, x, targets):
    """As transformers' ForCausalLMLoss since 4.49, which shifts the labels, not the logits."""
    logits = head(x)
    wide = logits.float()
    shifted = F.pad(targets, (0, 1), value=-100)[:, 1:].contiguous()
    return F.cross_entropy(wide.view(-1, VOCAB), shifted.view(-1), ignore_index=-100)


def summed(chunks, targets, loss):
    return sum(loss(c, t) for c, t in zip(chunks, targets.chunk(CHUNKS, dim=1)))


def entropy(logits, targets):
    return F.cross_entropy(logits.float().reshape(-1, VOCAB), targets.reshape(-1), reduction="sum")


def chunked(head, x, targets):
    """As torchtune's CEWithChunkedOutputLoss."""
    return summed([head(c) for c in x.chunk(CHUNKS, dim=1)], targets, entropy)


def widened(head, x, targets):
    """As lit-gpt's chunked_cross_entropy of logits that Fabric made float32."""
    return summed([head(c).float() for c in x.chunk(CHUNKS, dim=1)], targets, entropy)


compiled_entropy = torch.compile(entropy)


def compiled(head, x, targets):
    return summed([head(c) for c in x.chunk(CHUNKS, dim=1)], targets, compiled_entropy)


def main():
    result = {}
    for name, loss in {"whole": whole, "labelled": labelled, "chunked": chunked, "widened": widened, "compiled": compiled}.items():
        torch.manual_seed(0)
        model, x = Model(loss).to(torch.bfloat16), torch.randn(BATCH, LENGTH, HIDDEN, dtype=torch.bfloat16)

        def step():
            model(x).backward()
            model.zero_grad()

        step()
        result[name] = {"saved_bytes": saved_bytes(model, x), "cpu_training_peak_bytes": cpu_peak(step)}
        print(name, result[name], file=sys.stderr)
    json.dump({"torch": torch.__version__, "batch": BATCH, "length": LENGTH, "hidden": HIDDEN, "vocab": VOCAB, "chunks": CHUNKS, "losses": result}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
