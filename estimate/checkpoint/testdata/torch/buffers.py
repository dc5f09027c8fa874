"""Measure the buffers of transformers' models, and their weights in low precision.

    python buffers.py coverage.json.gz buffers.json [TYPE ...]

Of each type and class in coverage.json.gz a row says how many bytes of buffers, and how many of parameters, the class
has on the meta device in float32, bfloat16 and float16, as from_pretrained makes it: of the default config, with
the type's "changed" keys. These have fewer layers, so that models are made fast, and other positions and words, so
that sizes which follow from them show. Modules of _keep_in_fp32_modules and _keep_in_fp32_modules_strict are float32
as modeling_utils.py has it (_get_dtype_plan). Small models that were saved and loaded had the same bytes.
"""

import gzip
import json
import os
import signal
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "critical"

import torch
import transformers
from transformers import CONFIG_MAPPING

from classes import LAYERS, SECONDS

warnings.simplefilter("ignore")

OTHERS = {"max_position_embeddings": 1536, "n_positions": 1536, "vocab_size": 320, "first_k_dense_replace": 1, "pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 1}
DTYPES = ("float32", "bfloat16", "float16")


def late(*_):
    raise TimeoutError


def changes(config):
    """Return the keys of a config that are changed."""
    to = {}
    for key, value in config.items():
        if key in LAYERS or key in ("n_layer", "n_layers", "num_layers"):
            if "depths" not in config and isinstance(value, int) and value > 2 and not config.get("layer_types") and not config.get("attention_types"):
                to[key] = 2
        elif key in OTHERS and isinstance(value, int):
            to[key] = OTHERS[key]
    return to


def measure(cls, config):
    row = []
    for dtype in DTYPES:
        with torch.device("meta"):
            model = cls._from_config(config, dtype=getattr(torch, dtype))
        plan = {}
        if hasattr(model, "_get_dtype_plan"):
            plan = model._get_dtype_plan(getattr(torch, dtype))
        wide = transformers.core_model_loading.build_glob_alternation(list(plan))[0] if plan else None
        weights = 0
        for name, p in model.named_parameters():
            size = p.element_size()
            if wide is not None and wide.search(name):
                size = 4
            weights += p.numel() * size
        row.append([sum(b.numel() * b.element_size() for b in model.buffers()), weights])
    return row


def main():
    with gzip.open(sys.argv[1]) as f:
        types = json.load(f)["types"]
    signal.signal(signal.SIGALRM, late)
    only = sys.argv[3:]
    rows = {}
    for kind, of in sorted(types.items()):
        if only and kind not in only:
            continue
        for changed in (changes(of["config"]), {}):  # some refuse changes
            found = {}
            for name, pair in sorted(of["classes"].items()):
                if pair["params"] is None:
                    continue
                signal.alarm(SECONDS)
                try:
                    config = CONFIG_MAPPING[kind](**{**of["config"], **changed})
                    found[name] = measure(getattr(transformers, name), config)
                except Exception as e:
                    print(kind, name, type(e).__name__, str(e)[:80].replace("\n", " "), file=sys.stderr)
                finally:
                    signal.alarm(0)
            if found:
                rows[kind] = {"changed": changed, "classes": found}
                break
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items())
    with open(sys.argv[2], "w") as f:
        f.write(f'{{"transformers": {json.dumps(transformers.__version__)}, "types": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
