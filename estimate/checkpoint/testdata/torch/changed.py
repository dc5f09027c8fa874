"""Count the parameters that transformers makes of changed configs, for the tests of package checkpoint.

    python changed.py type[:Class[,Class ...]] ... > changed_GROUP.json

For each model_type a model is built on the meta device of the default config and of 20 changed
ones. A type may be written type:Class, for a class other than the first of the auto mappings below.
Of each further class there are two models more, of an unchanged and of a changed config.
The configs are written as save_pretrained writes them. The file has that of the default, and of
each changed one the keys that then differ: "set" has their values, "unset" the paths of keys that
are no longer written. Half of the changes are of one key, and the others of several. The changed
models have at most MOST layers, and a change is left out if transformers builds the model but
cannot run it where it runs the default.
"""

import json
import os
import random
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import torch
import transformers
from transformers.models.auto import modeling_auto

CHANGES, MOST = 20, 6
MAPPINGS = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "CTC", "IMAGE_CLASSIFICATION", "AUDIO_CLASSIFICATION", "")

# What a key of this kind may be instead; other words are left as they are.
WORDS = {
    "hidden_act": ["gelu", "relu", "silu"], "feat_extract_norm": ["group", "layer"], "feed_forward_proj": ["relu", "gated-gelu"],
    "vision_feature_select_strategy": ["default", "full"], "topk_method": ["greedy", "group_limited_greedy"],
}
# Keys of generation, training and initial values, those that only the code of a config reads, and
# scale_decoder_outputs, by which a T5 that is loaded is known to have a head of its own.
LEFT = ("_token_id", "scale_decoder_outputs", "_token", "id2label", "label2id", "chunk_size_feed_forward", "is_encoder_decoder", "output_", "return_dict", "problem_type", "use_cache", "initializer_", "_dropout", "dropout_", "_range", "_eps", "epsilon", "_loss", "_coef", "model_type", "transformers_version", "architectures", "dtype", "rope_", "pad_")


def model_class(name):
    name, _, classes = name.partition(":")
    if classes:
        return name, *(getattr(transformers, cls) for cls in classes.split(","))
    for mapping in MAPPINGS:
        names = getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES" if mapping else "MODEL_MAPPING_NAMES")
        if name in names:
            found = names[name]
            return name, getattr(transformers, found if isinstance(found, str) else found[0])
    raise KeyError(name)


def paths(config, prefix=()):
    """The keys of a config and of its parts that may be changed, with their values."""
    for key, value in config.items():
        if isinstance(value, dict) and "model_type" in value:
            yield from paths(value, prefix + (key,))
        elif not any(part in key for part in LEFT) and not key.startswith("_"):
            yield prefix + (key,), value


def alternatives(key, value):
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        if value == 0:
            return [1, 2]
        none = [None] if key.endswith(("_rank", "head_dim", "_window", "_layers_list")) else []
        return [value * 2, max(1, value // 2), value + max(1, value // 2)] + none
    if value is None:
        return [64] if key.endswith("_rank") else [2, 64, True, 0]
    if isinstance(value, float):
        return [value * 2, value / 2] if any(word in key for word in ("ratio", "expan", "multiplier", "factor")) else []
    if isinstance(value, str):
        return [word for word in WORDS.get(key, []) if word != value]
    if isinstance(value, list) and value and all(type(v) is type(value[0]) for v in value):
        if isinstance(value[0], int) and not isinstance(value[0], bool):
            return [[2 * v for v in value], value[::-1], value[:-1]]
        return [value[::-1], [value[0]] * len(value), [value[-1]] * len(value)]
    return []


def changed(config, change):
    config = json.loads(json.dumps(config))
    for path, value in change.items():
        part = config
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = value
    return config


def build(cls, config):
    with torch.device("meta"):
        model = cls(config)
    model.config.architectures = [cls.__name__]
    return model


def runs(model):
    ids = torch.zeros(1, 8, dtype=torch.long, device="meta")
    try:
        with torch.no_grad():
            model(**({"input_ids": ids, "decoder_input_ids": ids} if model.config.is_encoder_decoder else {"input_ids": ids}))
    except Exception:
        return False
    return True


def divides(config):
    """Whether the heads of all parts divide, as of a model that runs."""
    parts = [config, *(getattr(config, name) for name in getattr(config, "sub_configs", {}))]
    for part in parts:
        heads, width = getattr(part, "num_attention_heads", None), getattr(part, "hidden_size", None)
        if isinstance(heads, int) and isinstance(width, int):
            if heads % (getattr(part, "num_key_value_heads", None) or 1) or width % heads and not getattr(part, "head_dim", None):
                return False
    return True


def count(model):
    return sum(p.numel() for p in model.parameters())


def saved(model):
    return json.loads(model.config.to_json_string(use_diff=True))


def difference(before, after):
    """The values that are new in after, and the paths of keys that only before has."""
    values, gone = {}, [[key] for key in before if key not in after]
    for key, value in after.items():
        if isinstance(value, dict) and isinstance(before.get(key), dict):
            inner, without = difference(before[key], value)
            if inner:
                values[key] = inner
            gone += [[key, *path] for path in without]
        elif key not in before or before[key] != value or type(before[key]) is not type(value):
            values[key] = value
    return values, gone


def shallow(make, default):
    """Changes that leave a model at most MOST layers."""
    change = {path: MOST for path, value in paths(default) if path[-1] in ("num_hidden_layers", "depth", "num_layers", "n_layer") and isinstance(value, int) and value > MOST}
    # What the class derives from the number of layers goes with it.
    layers = {value for path, value in paths(default) if path[-1] in ("num_hidden_layers", "depth", "num_layers", "n_layer")}
    without = json.loads(json.dumps(default))
    for path, value in list(paths(default)):
        if isinstance(value, list) and len(value) in layers:
            part = without
            for key in path[:-1]:
                part = part[key]
            del part[path[-1]]
    for start, c in ((without, change), (default, change), (default, {})):
        try:
            make(changed(start, c))
            return changed(start, c)
        except Exception:
            continue


def changes(name, cls, *further):
    """The changed configs of a type, and the parameters of each."""
    config_class = transformers.CONFIG_MAPPING[name]  # of EXAONE, Llama's class runs the model
    make = lambda given: build(cls, config_class(**given))
    whole = make({})
    default, reference = json.loads(json.dumps(config_class().to_dict())), saved(whole)
    result = {"config": reference, "params": count(whole), "changed": []}
    base = shallow(make, default)
    small = make(base)
    usual, ran = count(small), runs(small)
    shuffled = random.Random(name)
    seen = set()

    def attempt(change):
        try:
            model = make(changed(base, change))
        except Exception:
            return None
        if ran and not runs(model) or not ran and not divides(model.config):
            return None
        return model

    def add(model):
        values, gone = difference(reference, saved(model))
        text = json.dumps([values, gone])
        if text not in seen:
            seen.add(text)
            result["changed"].append({"set": values, **({"unset": gone} if gone else {}), "params": count(model)})

    single, silent = [], []
    for path, value in paths(small.config.to_dict()):
        for other in alternatives(path[-1], value):
            change = {path: other}
            model = attempt(change)
            if model is None or path[-1] == "num_hidden_layers" and other is not None and other > MOST:
                continue
            (single if count(model) != usual else silent).append((change, model))
    add(small)
    kept = single[:]
    shuffled.shuffle(kept), shuffled.shuffle(silent)
    firsts, keys = [], set()
    for change, model in kept:  # different keys first
        if (key := next(iter(change))) not in keys:
            keys.add(key)
            firsts.append(model)
    for model in firsts[: CHANGES // 2]:
        add(model)
    for change, model in silent[:3]:
        add(model)
    tried = 0
    while len(result["changed"]) < CHANGES and tried < 10 * CHANGES:
        tried += 1
        parts = shuffled.sample(single, min(len(single), shuffled.randint(2, 5))) + shuffled.sample(silent, min(len(silent), 1))
        if model := attempt({path: value for change, _ in parts for path, value in change.items()}):
            add(model)
    labels = {"id2label": {str(i): f"LABEL_{i}" for i in range(5)}}
    for other in further:
        add(build(other, config_class(**base)))
        shuffled.shuffle(single)
        for change, _ in single:
            try:
                model = build(other, config_class(**changed({**base, **labels}, change)))
            except Exception:
                continue
            add(model)
            break
    return result


def main(names):
    result = {}
    for name in names:
        name, cls, *further = model_class(name)
        try:
            result[name] = changes(name, cls, *further)
        except Exception as e:
            print(name, repr(e), file=sys.stderr, flush=True)
            continue
        print(name, cls.__name__, len(result[name]["changed"]), file=sys.stderr, flush=True)
    # One config to a line keeps changes readable.
    types = []
    for name, r in result.items():
        lines = ",\n".join(json.dumps(c) for c in r["changed"])
        types.append(f'{json.dumps(name)}: {{"config": {json.dumps(r["config"])},\n"params": {r["params"]}, "changed": [\n{lines}]}}')
    print(f'{{"torch": {json.dumps(torch.__version__)}, "transformers": {json.dumps(transformers.__version__)},')
    print(",\n".join(types) + "\n}")


if __name__ == "__main__":
    main(sys.argv[1:])
