"""Measure the caches of small models that write texts, for the tests of package checkpoint.

    python caches.py families_GROUP.json > caches_GROUP.json

Of each model the file has the bytes of the unique storages of keys, values and states, by element
type: after a prompt of the length that families_GROUP.json says, and after one more token.
"""

import json
import sys

import torch
import transformers

from families import BATCH, PROMPT, build, fill_gaps, inputs, storage


def tensors(holder, seen):
    """The tensors of one or more dimensions that an object and the objects within hold."""
    if isinstance(holder, torch.Tensor):
        if holder.dim():
            yield holder
        return
    if holder is None or id(holder) in seen or isinstance(holder, (str, int, float, type)):
        return
    seen.add(id(holder))
    if isinstance(holder, dict):
        within = holder.values()
    else:
        within = holder if isinstance(holder, (list, tuple, set)) else getattr(holder, "__dict__", {}).values()
    for one in list(within):
        yield from tensors(one, seen)


@torch.no_grad()
def cache(model, dtype, length, prompt):
    """After a prompt, with images or sounds if it has any, and after one more token, which is none of theirs."""
    given = inputs(model, dtype, length, **prompt)
    held, sizes = None, []
    for step in (given, {"input_ids": given["input_ids"][:, :1]}):
        if held is not None and "cross_attention_mask" in given:
            step["cross_attention_mask"] = given["cross_attention_mask"][:, -1:]
        held = model(**step, use_cache=True, cache=held).cache
        sizes.append(sum({storage(t).data_ptr(): storage(t).nbytes() for t in tensors(held, set())}.values()))
    return sizes


def main(path):
    fill_gaps()
    with open(path) as f:
        models = json.load(f)
    lines = []
    for name, model in models.items():
        if not isinstance(model, dict):
            continue
        prompt = {k: model[k] for k in PROMPT if k in model}
        if prompt or model["config"]["architectures"][0].endswith(("ForCausalLM", "LMHeadModel")):
            try:
                sizes = {str(d).removeprefix("torch."): cache(build(model["config"], d).eval(), d, model["length"], prompt) for d in (torch.float32, torch.bfloat16)}
            except (ValueError, TypeError) as e:  # such as a model without attention, whose tokens Cache does not count
                print(name, e, file=sys.stderr)
                continue
            lines.append(f"{json.dumps(name)}: {json.dumps(sizes)}")
    print(f'{{"torch": {json.dumps(torch.__version__)}, "transformers": {json.dumps(transformers.__version__)},\n' + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main(sys.argv[1])
