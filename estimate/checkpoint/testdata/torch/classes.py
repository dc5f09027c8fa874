"""Write what transformers' model classes say besides their configurations: `make tables`.

    python classes.py classes.json float32.json

Of each class that the auto classes know, a row says

    tied            _tied_weights_keys: parameters that are others, if tie_word_embeddings of the config
                    is set. A checkpoint that has both with different values is loaded untied
                    (modeling_utils.py, tie_weights).
    float32         _keep_in_fp32_modules: modules that stay in float32 where float16 is asked for
    float32_always  _keep_in_fp32_modules_strict: the same, where bfloat16 is asked for too
    buffers         of a model of defaults with two layers, on the meta device: the name, with numbers of
                    layers as a star, then the type, the elements, how many there are, and whether a file
                    has them

float32.json has the modules in float32 of each type: "float16" where that is asked for, "always" where bfloat16 is, too.

On stdout: what changed against the file.
"""

import json
import os
import re
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "critical"

import signal
import warnings

import torch
import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto

warnings.simplefilter("ignore")

# Names of the numbers of layers, which are set to two.
LAYERS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_decoder_layers", "num_encoder_layers")

# Models that take longer are not built.
SECONDS = 20

# Smaller buffers are left out, such as the frequencies of a rotation.
LEAST = 1024


def names():
    """Return the classes of each type, as the auto classes have them."""
    found = {}
    for name, mapping in vars(modeling_auto).items():
        if not name.endswith("MAPPING_NAMES"):
            continue
        for kind, classes in mapping.items():
            found.setdefault(kind, set()).update([classes] if isinstance(classes, str) else classes)
    return found


def small(kind):
    """Return a config of defaults with two layers, and parts of two layers."""
    config = CONFIG_MAPPING[kind]()
    for part in [config, *(getattr(config, key, None) for key in config.sub_configs)]:
        for key in LAYERS:
            if isinstance(getattr(part, key, None), int) and not getattr(part, "layer_types", None):
                setattr(part, key, min(2, getattr(part, key)))
    return config


def buffers(cls, kind):
    def late(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        with torch.device("meta"):
            model = cls(small(kind))
    except Exception:  # it cannot be built of defaults
        return None
    finally:
        signal.alarm(0)
    found = {}
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is None:
                continue
            path = re.sub(r"\.\d+(?=\.|$)", ".*", f"{prefix}.{name}" if prefix else name)
            persistent = name not in module._non_persistent_buffers_set
            row = found.setdefault(path, [str(buffer.dtype).removeprefix("torch."), buffer.numel(), 0, persistent])
            row[2] += 1
    return {path: row for path, row in found.items() if row[1] >= LEAST}


def row(cls, kind):
    r = {}
    tied = getattr(cls, "_tied_weights_keys", None)
    if tied and isinstance(tied, (dict, list, set)):
        r["tied"] = tied if isinstance(tied, dict) else sorted(tied)
    for name, key in (("float32", "_keep_in_fp32_modules"), ("float32_always", "_keep_in_fp32_modules_strict")):
        modules = getattr(cls, key, None)
        if modules and isinstance(modules, (list, set, tuple)):
            r[name] = sorted(modules)
    if found := buffers(cls, kind):
        r["buffers"] = found
    return r


def write(path, of, rows):
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items())
    with open(path, "w") as f:
        f.write(f'{{"transformers": {json.dumps(transformers.__version__)}, "{of}": {{\n{lines}\n}}}}\n')


def widened(kinds, rows):
    """Return the modules in float32 of each type, those of all its classes."""
    found = {}
    for kind, classes in sorted(kinds.items()):
        for key, name in (("float16", "float32"), ("always", "float32_always")):
            modules = {m for c in classes for m in rows.get(c, {}).get(name, ())}
            if kind in CONFIG_MAPPING and modules:
                found.setdefault(kind, {})[key] = sorted(modules)
    return found


def changes(old, new):
    yield f"transformers {old.get('transformers', '?')} -> {new['transformers']}"
    before, after = old.get("classes", {}), new["classes"]
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            yield ("+ " if name in after else "- ") + name
        elif before[name] != after[name]:
            yield f"  {name}: {json.dumps(before[name])} -> {json.dumps(after[name])}"


def main():
    path = sys.argv[1]
    old = {}
    if os.path.exists(path):
        with open(path) as f:
            old = json.load(f)
    rows = {}
    for kind, classes in sorted(names().items()):
        for name in sorted(classes):
            cls = getattr(transformers, name, None)
            if kind in CONFIG_MAPPING and isinstance(cls, type):
                rows[name] = row(cls, kind)
    rows = {name: r for name, r in sorted(rows.items()) if r}
    new = {"transformers": transformers.__version__, "classes": rows}
    write(path, "classes", rows)
    write(sys.argv[2], "types", widened(names(), rows))
    print("\n".join(changes(old, new)))


if __name__ == "__main__":
    main()
