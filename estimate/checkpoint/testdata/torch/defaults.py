"""Write what transformers takes where a config.json leaves a key out, for package family.

    python defaults.py > ../../../internal/family/defaults.json && go generate ../../../internal/family

Of each family the defaults of its configuration class are written as the class has them,
before any of them is computed from others, for the keys that package family reads.
"""

import glob
import json
import os
import re
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import transformers
from transformers import CONFIG_MAPPING

HERE = os.path.dirname(os.path.abspath(__file__))
FAMILY = os.path.join(HERE, "../../../internal/family")

# What reads a key of a config.json; the key is its first text.
READ = r'\.(?i:number|optional|bounded|times|whole|flag|ratio|dropout|word|list|names|has|value|set|usual|move|mixture|perBlock|blockKinds)\((?:[&\w.]+, )?'

# The classes whose model_type is not a key of CONFIG_MAPPING, or is another's too.
OTHERS = {
    "qwen2_vl_vision": "Qwen2VLVisionConfig", "qwen2_5_vl_vision": "Qwen2_5_VLVisionConfig",
    "qwen3_vl_vision": "Qwen3VLVisionConfig", "qwen3_vl_moe_vision": "Qwen3VLMoeVisionConfig",
}


def find(name):
    for module in sys.modules.values():
        if hasattr(module, name) and module.__name__.startswith("transformers.models."):
            return getattr(module, name)


def raw(cls, keys):
    keys = keys | {"dim", "n_layers", "n_heads", "hidden_dim", "n_layer", "n_head", "d_model", "num_layers", "num_heads", "d_ff", "d_kv", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "num_decoder_layers"}
    values = {}
    for base in reversed(cls.__mro__):
        for name in getattr(base, "__annotations__", {}):
            value = vars(base).get(name)
            if name in keys and isinstance(value, (bool, int, float, str)):
                values[name] = value
            elif name in keys and value is None:
                values.pop(name, None)
    # What the class computes from other settings follows it at its default sizes: leave it out.
    return values


def main():
    keys, families = set(), set()
    for path in glob.glob(os.path.join(FAMILY, "**", "*.go"), recursive=True):
        with open(path) as f:
            text = f.read()
        keys |= set(re.findall(READ + r'"([a-z0-9_]+)"', text)) | set(re.findall(r'c\.(?i:move)\("[a-z0-9_]+", "([a-z0-9_]+)"', text))
        families |= set(re.findall(r'"([a-z0-9_-]+)"', text))
    keys -= {"architectures"}
    result = {}
    for family in sorted(families):
        if family in OTHERS:
            module = family.removesuffix("_vision")
            __import__(f"transformers.models.{module}.configuration_{module}")
            cls = find(OTHERS[family])
        elif family in CONFIG_MAPPING:
            cls = CONFIG_MAPPING[family]
        else:
            continue
        result[family] = raw(cls, keys)
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in result.items())
    print("{\n" + lines + "\n}")


if __name__ == "__main__":
    main()
