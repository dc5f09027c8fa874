"""Write which attention transformers' models run by default.

    python attention.py coverage.json.gz attention.json

Of each type, the attention of its text and of its parts, as PreTrainedModel chooses it where nothing is asked for
(modeling_utils.py, _check_and_adjust_attn_implementation): "sdpa" or "eager", of a model on the meta device.
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

from buffers import changes, late
from classes import SECONDS

warnings.simplefilter("ignore")


def main():
    with gzip.open(sys.argv[1]) as f:
        types = json.load(f)["types"]
    signal.signal(signal.SIGALRM, late)
    only = sys.argv[3:]
    rows = {}
    for kind, of in sorted(types.items()):
        if only and kind not in only:
            continue
        names = [name for name, pair in sorted(of["classes"].items()) if pair["params"] is not None]
        for changed in (changes(of["config"]), {}):
            signal.alarm(SECONDS)
            try:
                config = CONFIG_MAPPING[kind](**{**of["config"], **changed})
                with torch.device("meta"):
                    model = getattr(transformers, names[0])._from_config(config)
                found = {"": model.config._attn_implementation}
                for module in model.modules():
                    own = getattr(module, "config", None)
                    if own is not None and own is not model.config and hasattr(own, "_attn_implementation"):
                        found[own.model_type] = own._attn_implementation
                rows[kind] = found
                break
            except Exception as e:
                print(kind, type(e).__name__, str(e)[:80].replace("\n", " "), file=sys.stderr)
            finally:
                signal.alarm(0)
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items())
    with open(sys.argv[2], "w") as f:
        f.write(f'{{"transformers": {json.dumps(transformers.__version__)}, "types": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
