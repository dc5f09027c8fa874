"""Measure the losses of language models, for the tests of package estimate.

    python losses.py > losses.json

A projection and a head in bfloat16 run over a text, then the loss. saved_bytes are those that
autograd keeps, each storage once, without parameters; cpu_training_peak_bytes is the most that
is alive at once during forward and backward, by the profiler's record. compiled is
torch.compile's on the CPU, of which the kept bytes alone are compared. early keeps for the backward
passes of its chunks, one after another, so that its kept bytes never live at once.
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


class Given(torch.autograd.Function):
    """The loss, whose gradient of x was computed before."""

    @staticmethod
    def forward(ctx, x, gradient, loss):
        ctx.save_for_backward(gradient)
        return loss.detach()

    @staticmethod
    def backward(ctx, _):
        return ctx.saved_tensors[0], None, None


def early(head, x, targets):
    """As torchtitan 0.3's ChunkedLossWrapper (components/loss.py): each chunk's backward pass follows its loss."""
    parts = [c.contiguous().detach().requires_grad_() for c in x.chunk(CHUNKS, dim=1)]
    gradient, total, begin = torch.zeros_like(x, dtype=torch.float32), torch.zeros(()), 0
    for part, t in zip(parts, targets.chunk(CHUNKS, dim=1)):
        logits = head(part)
        loss = entropy(logits, t)
        total = total + loss.detach()
        loss.backward()
        gradient[:, begin:begin + part.shape[1]] += part.grad
        begin, part.grad = begin + part.shape[1], None
    return Given.apply(x, gradient.to(x.dtype), total)


class FusedHead(torch.autograd.Function):
    """As liger_kernel 0.8's LigerFusedLinearCrossEntropyFunction, whose kernel overwrites a chunk of logits by its gradient."""

    @staticmethod
    def forward(ctx, x, weight, targets):
        x = x.view(-1, HIDDEN)
        gradient, of_weight = torch.zeros_like(x), torch.zeros_like(weight)
        size = 1 << ((len(x) - 1) // ((VOCAB - 1) // HIDDEN + 1) - 1).bit_length() if len(x) > VOCAB // HIDDEN else 1
        logits = torch.empty(size, VOCAB, dtype=x.dtype)
        for begin in range(0, len(x), size):
            torch.mm(x[begin:begin + size], weight.t(), out=logits)
            gradient[begin:begin + size] = logits @ weight
            of_weight.addmm_(logits.t(), x[begin:begin + size])
        ctx.save_for_backward(gradient, of_weight)
        return gradient.new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx, _):
        gradient, of_weight = ctx.saved_tensors
        return gradient.view(BATCH, LENGTH, HIDDEN), of_weight, None


def liger(head, x, targets):
    return FusedHead.apply(x, head.weight, targets)


class CutCrossEntropy(torch.autograd.Function):
    """As cut_cross_entropy 25.1's LinearCrossEntropyFunction, whose kernels hold no logits (cce.py)."""

    @staticmethod
    def forward(ctx, x, weight, targets):
        ctx.save_for_backward(x, weight, torch.zeros(BATCH * LENGTH), targets)
        return torch.zeros(())

    @staticmethod
    def backward(ctx, _):
        x, weight, *_ = ctx.saved_tensors
        return torch.zeros_like(x), torch.zeros_like(weight), None


def cut(head, x, targets):
    return CutCrossEntropy.apply(x, head.weight, targets)


class WideSums(CutCrossEntropy):
    """As the fused head of TRL 1.16 (kernels/chunked_logprob.py), which adds up in float32."""

    @staticmethod
    def backward(ctx, _):
        x, weight, *_ = ctx.saved_tensors
        sums = torch.zeros_like(x, dtype=torch.float32), torch.zeros_like(weight, dtype=torch.float32)
        return sums[0].to(x.dtype), sums[1].to(x.dtype), None


def wide_sums(head, x, targets):
    return WideSums.apply(x, head.weight, targets)


compiled_entropy = torch.compile(entropy)


def compiled(head, x, targets):
    return summed([head(c) for c in x.chunk(CHUNKS, dim=1)], targets, compiled_entropy)


def main():
    result = {}
    for name, loss in {"whole": whole, "labelled": labelled, "chunked": chunked, "widened": widened, "compiled": compiled, "early": early, "liger": liger, "cut": cut, "wide_sums": wide_sums}.items():
        torch.manual_seed(0)
        model, x = Model(loss).to(torch.bfloat16), torch.randn(BATCH, LENGTH, HIDDEN, dtype=torch.bfloat16)

        def step():
            model(x).backward()
            model.zero_grad()

        step()
        saved = saved_bytes(model, x)
        model.zero_grad()
        result[name] = {"saved_bytes": saved, "cpu_training_peak_bytes": cpu_peak(step)}
        print(name, result[name], file=sys.stderr)
    json.dump({"torch": torch.__version__, "batch": BATCH, "length": LENGTH, "hidden": HIDDEN, "vocab": VOCAB, "chunks": CHUNKS, "losses": result}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
