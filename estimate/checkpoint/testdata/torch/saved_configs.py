"""Write configs as save_pretrained writes them after a change, for the tests of package checkpoint.

    python saved_configs.py saved_configs.json

It writes the file anew. Each model is named after the change. Its config is read by the installed transformers or
diffusers and written again, and the parameters are counted on the meta device. A new model needs a name
and a config, in which the keys of the change suffice. "refused" is the key that the error of package
checkpoint names, and replaces the parameters. What is written "by_hand" the libraries do not write so: it stays as it is.
"""

import json
import os
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import diffusers
import torch
import transformers


def transformers_row(config):
    """The config as save_pretrained writes it, and a function that counts the model's parameters."""
    made = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)

    def count():
        return parameters(lambda: getattr(transformers, config["architectures"][0])._from_config(made))

    return written(made.save_pretrained), count


def diffusers_row(config):
    with torch.device("meta"):
        model = getattr(diffusers, config["_class_name"]).from_config(config)
    return written(model.save_config), lambda: parameters(lambda: model)


def parameters(build):
    with torch.device("meta"):
        return sum(p.numel() for p in build().parameters())


def written(save):
    with tempfile.TemporaryDirectory() as folder:
        save(folder)
        with open(os.path.join(folder, "config.json")) as f:
            return json.load(f)


def main(path):
    with open(path) as f:
        models = json.load(f)
    lines = []
    for m in models:
        if m.get("by_hand"):
            lines.append(json.dumps(m))
            continue
        config, count = (diffusers_row if "_class_name" in m["config"] else transformers_row)(m["config"])
        row = {"name": m["name"], "config": config}
        # Not every model that is refused can be built.
        row |= {"refused": m["refused"]} if "refused" in m else {"params": count()}
        lines.append(json.dumps(row))
    with open(path, "w") as f:
        f.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main(sys.argv[1])
