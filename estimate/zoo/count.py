"""Count the parameters of known models, for package zoo.

    python count.py models.json > counted.json && mv counted.json models.json && go generate

and of testdata/others.json, which has models for tests alone. The file has the settings that the config.json of each model's repository has, as far as
they bear on sizes. Each model is built of them by transformers without any memory, on
PyTorch's meta device, and its number of parameters written beside them.
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import torch
import transformers


def count(config):
    cls = getattr(transformers, config["architectures"][0])
    known = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "quantization_config")}
    settings = cls.config_class(**known)
    if config.get("tie_word_embeddings") is False:
        # T5's config forces True; from_pretrained does not tie where the checkpoint has two tensors that differ.
        settings.tie_word_embeddings = False
    with torch.device("meta"):
        return cls(settings).num_parameters()


def main(path):
    with open(path) as f:
        models = json.load(f)
    models.pop("transformers", None)
    for name, model in models.items():
        model["params"] = count(model["config"])
        print(name, model["params"], file=sys.stderr, flush=True)
    # One model to a line keeps changes readable.
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in models.items())
    print(f'{{"transformers": {json.dumps(transformers.__version__)},\n{lines}\n}}')


if __name__ == "__main__":
    main(sys.argv[1])
