"""Measure ways of training, for the tests of package estimate.

    python ways.py > ways.json

The model is llama-tiny of measure.py, with so short a text that parameters and gradients
are most of the memory. Its training steps are measured on the CPU as there: the most memory
alive at once above what was there before the step, by the profiler's record. States are the
bytes that the optimizers hold, without their step counters.
"""

import json
import sys

import torch

from measure import ZOO, cpu_peak, run, training_step

BATCH, LENGTH = 1, 16


class Each:
    """Several optimizers as one."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers

    def step(self):
        for o in self.optimizers:
            o.step()

    def zero_grad(self, set_to_none=True):
        for o in self.optimizers:
            o.zero_grad(set_to_none=set_to_none)


class Lion(torch.optim.Optimizer):
    """The update rule of arXiv:2302.06675, algorithm 2, with one temporary after another."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99)):
        super().__init__(params, dict(lr=lr, betas=betas))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                m, (b1, b2) = state["exp_avg"], group["betas"]
                p.add_((m * b1).add(p.grad, alpha=1 - b1).sign_(), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


def muon(model):
    inside = {id(p) for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n}
    matrices = [p for p in model.parameters() if id(p) in inside]
    rest = [p for p in model.parameters() if id(p) not in inside]
    return Each(torch.optim.Muon(matrices), torch.optim.AdamW(rest))


def in_backward(model):
    optimizers = {}

    def hook(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        optimizers[p] = torch.optim.AdamW([p])
        p.register_post_accumulate_grad_hook(hook)
    return Each(*optimizers.values()), True


WAYS = {
    "adamw": lambda m: torch.optim.AdamW(m.parameters()),
    "lion": lambda m: Lion(m.parameters()),
    "muon": muon,
    "adamw in backward": in_backward,
}


def parts(optimizer):
    return optimizer.optimizers if isinstance(optimizer, Each) else [optimizer]


def states(optimizer):
    tensors = [t for o in parts(optimizer) for s in o.state.values() for t in s.values()]
    return sum(t.numel() * t.element_size() for t in tensors if torch.is_tensor(t) and t.ndim > 0)


def backward(model, x):
    out = run(model, x)
    out.backward(torch.ones_like(out))


def main():
    build, _ = ZOO["llama-tiny"]
    result = {}
    for name, make in WAYS.items():
        torch.manual_seed(0)
        model, x = build(), torch.randint(0, 1000, (BATCH, LENGTH))
        model.train()
        optimizer = make(model)
        hooked = isinstance(optimizer, tuple)
        optimizer = optimizer[0] if hooked else optimizer
        step = (lambda: backward(model, x)) if hooked else (lambda: training_step(model, x, optimizer))
        step()
        result[name] = {"states_bytes": states(optimizer), "cpu_training_peak_bytes": cpu_peak(step)}
        print(name, result[name], file=sys.stderr)
    json.dump({"torch": torch.__version__, "batch": BATCH, "length": LENGTH, "ways": result}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
