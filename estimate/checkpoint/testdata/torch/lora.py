"""Count what PEFT trains of each model, and write its tables of targets, for the tests of package checkpoint.

    python lora.py targets > ../../../internal/family/lora.json
    python lora.py trained > lora.json

targets are PEFT's default targets of LoRA by model_type, and the types whose mixtures of experts it adapts as fused
parameters with "all-linear". trained builds each model of each class in families*.json, ordinary.json and the zoo without memory,
and counts the parameters that LoRA of rank 8 trains with the default targets (null if PEFT has none) and with "all-linear".
"""

import glob
import json
import os
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
warnings.filterwarnings("ignore")

import peft
import torch
import transformers
from peft.utils import transformers_weight_conversion as conversion
from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as DEFAULTS

RANK = 8
VERSIONS = {"peft": peft.__version__, "transformers": transformers.__version__}


def targets():
    """The conversion of targets for fused layers runs before the defaults are looked up, so that those types have none."""
    fused = {}
    for kind, pattern in conversion._MODEL_TO_CONVERSION_PATTERN.items():
        if conversion._MOE_TARGET_MODULE_MAPPING.get(pattern) and conversion._MOE_FUSED_TARGETS.get(pattern):
            fused[kind] = pattern
    return {**VERSIONS, "targets": {k: patterns(v) for k, v in sorted(DEFAULTS.items()) if k not in fused}, "fused": dict(sorted(fused.items())), "namings": {p: conversion._MOE_TARGET_MODULE_MAPPING[p] for p in sorted(set(fused.values()))}}


def patterns(names):
    """Names of layers as a list. The only regular expression, that of Gemma 4, becomes patterns of Go's path.Match."""
    if not isinstance(names, str):
        return sorted(names)
    before, ends = names.replace("\\.", ".").replace(".*", "*").rstrip(")").split("(")
    assert not set(before + ends) & set("\\[]^$+?{}()"), names
    return [before + end for end in ends.split("|")]


def models():
    seen = set()
    here = os.path.dirname(os.path.abspath(__file__))
    for path in sorted(glob.glob(f"{here}/families*.json")) + [f"{here}/ordinary.json", f"{here}/../../../zoo/models.json", f"{here}/../../../zoo/testdata/others.json"]:
        with open(path) as f:
            for name, model in json.load(f).items():
                config = model.get("config") or model.get("Config") if isinstance(model, dict) else None
                if not config or "model_type" not in config:
                    continue
                kind = (config["model_type"], *config.get("architectures", []))
                if kind not in seen:  # the first of each class
                    seen.add(kind)
                    yield f"{os.path.basename(path)} {name}", config


def build(config):
    known = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "torch_dtype", "dtype", "quantization_config")}
    kind = transformers.AutoConfig.for_model(config["model_type"], **known)
    cls = getattr(transformers, config["architectures"][0]) if "architectures" in config else transformers.AutoModel
    with torch.device("meta"):
        return cls._from_config(kind) if cls is not transformers.AutoModel else cls.from_config(kind)


def trained(config, names):
    try:
        model = peft.get_peft_model(build(config), peft.LoraConfig(r=RANK, target_modules=names))
    except ValueError as e:
        if names is None and "target_modules" in str(e):
            return None
        raise
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def main(what):
    if what == "targets":
        tables = targets()
        lines = lambda table: "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in table.items()) + "\n}"
        head = json.dumps(VERSIONS)[1:-1]
        print("{" + head + ',\n"targets": ' + lines(tables["targets"]) + ',\n"fused": ' + lines(tables["fused"]) + ',\n"namings": ' + lines(tables["namings"]) + "}")
        return
    lines = []
    for name, config in models():
        try:
            row = {"default": trained(config, None), "all": trained(config, "all-linear")}
        except Exception as e:
            print(name, repr(e)[:200], file=sys.stderr, flush=True)
            continue
        lines.append(f"{json.dumps(name)}: {json.dumps(row)}")
        print(lines[-1], file=sys.stderr, flush=True)
    head = json.dumps(VERSIONS)[1:-1]
    print("{" + head + f', "rank": {RANK},\n' + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main(sys.argv[1])
