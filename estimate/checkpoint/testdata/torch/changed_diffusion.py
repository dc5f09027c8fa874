"""Count the parameters that diffusers makes of changed configs, for the tests of package checkpoint.

    python changed_diffusion.py Class ... > changed_diff.json

For each class a model is built on the meta device of the default config and of 20 changed ones, as
changed.py does for transformers. Half of the changes are of one key, and the others of several. A
change is left out if diffusers builds the model but cannot run it.
"""

import inspect
import json
import random
import sys

import diffusers
import torch

from changed import CHANGES, count, difference
from diffusion import forward, inputs

MOST = 4  # layers of the changed models
DEEP = ("num_layers", "num_single_layers", "n_layers")

# Alternatives of keys that lists and words do not lead to.
OTHERS = {
    "patch_size": {"WanTransformer3DModel": [[1, 4, 4]], "AutoencoderKLWan": [2], "AutoencoderKLFlux2": [[4, 4]]},
    "decoder_block_out_channels": {"AutoencoderKLFlux2": [[64, 128, 256, 256]]},
    "temperal_downsample": {"": [[True, True, False], [False, False, False]]},
    "dim_mult": {"": [[1, 2, 2, 4], [2, 2, 4, 4], [1, 1, 2, 2]]},
    "block_out_channels": {"AutoencoderKLLTXVideo": [[64, 128, 256, 256], [128, 256, 256, 512]], "": [[64, 128, 256, 256], [128, 256, 256, 256]]},
    "layers_per_block": {"AutoencoderKLLTXVideo": [[2, 1, 1, 1, 2]]},
    "decoder_layers_per_block": {"": [[5, 3, 2, 1, 4]]},
    "decoder_inject_noise": {"": [[True, True, False, False, True]]},
    "upsample_residual": {"": [[True, True, True, False]]},
    "upsample_factor": {"": [[2, 2, 1, 1]]},
    "spatio_temporal_scaling": {"": [[True, True, False, False]]},
    "decoder_spatio_temporal_scaling": {"": [[True, True, False, False]]},
    "attn_scales": {"": [[1.0], [0.5]]},
    "decoder_base_dim": {"": [64, 128]},
    "image_dim": {"": [1280]},
    "added_kv_proj_dim": {"": [5120]},
    "pos_embed_seq_len": {"": [257]},
    "mlp_ratio": {"": [3.0, 2.0]},
    "siglip_feat_dim": {"": [1152]},
    "axes_dims": {"": []},
    "axes_lens": {"": []},
    "image_condition_type": {"": ["latent_concat", "token_replace"]},
    "latents_mean": {"": []}, "latents_std": {"": []}, "down_block_types": {"": []}, "up_block_types": {"": []}, "downsample_type": {"": []},
}
LEFT = ("dropout", "eps", "scaling_factor", "momentum", "theta", "t_scale", "scale_factor_")
# Whole configs that a rule for single keys does not reach, as of published models.
TOGETHER = {
    "AutoencoderKLWan": [{"base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "is_residual": True, "in_channels": 12, "out_channels": 12, "patch_size": 2, "latents_mean": [0.0] * 48, "latents_std": [1.0] * 48, "temperal_downsample": [False, True, True]}],
    "WanTransformer3DModel": [{"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30}, {"in_channels": 36, "image_dim": 1280, "added_kv_proj_dim": 5120}],
    "AutoencoderKLLTXVideo": [
        {"block_out_channels": [128, 256, 512, 1024, 2048], "down_block_types": ["LTXVideo095DownBlock3D"] * 4, "decoder_block_out_channels": [256, 512, 1024], "layers_per_block": [4, 6, 6, 2, 2],
         "decoder_layers_per_block": [5, 5, 5, 5], "spatio_temporal_scaling": [True, True, True, True], "decoder_spatio_temporal_scaling": [True, True, True], "decoder_inject_noise": [False, False, False, False],
         "downsample_type": ["spatial", "temporal", "spatiotemporal", "spatiotemporal"], "upsample_residual": [True, True, True], "upsample_factor": [2, 2, 2], "timestep_conditioning": True, "encoder_causal": True, "decoder_causal": False},
    ],
}


def alternatives(cls, key, value):
    if any(part in key for part in LEFT):
        return []
    if key in OTHERS:
        return OTHERS[key].get(cls.__name__, OTHERS[key].get("", []))
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value * 2, max(1, value // 2)]
    if key in ("layers_per_block",):
        return [1, 3]
    return []


def make(cls, config):
    with torch.device("meta"):
        return cls(**config)


def runs(model):
    try:
        with torch.no_grad(), torch.device("meta"):
            forward(model, inputs(model, torch.float32))
    except Exception as e:
        if "-v" in sys.argv:
            print(type(model).__name__, repr(e)[:300], file=sys.stderr)
        return False
    return True


def saved(model):
    return json.loads(model.to_json_string())


def changes(name):
    cls = getattr(diffusers, name)
    whole = make(cls, {})
    reference = saved(whole)
    result = {"config": reference, "params": count(whole), "changed": []}
    default = {k: p.default for k, p in inspect.signature(cls.__init__).parameters.items() if k != "self"}
    base = {key: MOST for key in DEEP if isinstance(default.get(key), int) and default[key] > MOST}
    small = make(cls, base)
    usual, ran = count(small), runs(small)
    if not ran:
        print(name, "does not run on the meta device", file=sys.stderr)
    shuffled, seen = random.Random(name), set()

    def add(model):
        values, gone = difference(reference, saved(model))
        text = json.dumps([values, gone])
        if text not in seen:
            seen.add(text)
            result["changed"].append({"set": values, **({"unset": gone} if gone else {}), "params": count(model)})

    def attempt(change):
        try:
            model = make(cls, {**base, **change})
        except Exception:
            return None
        return None if ran and not runs(model) else model

    add(small)
    for change in TOGETHER.get(name, []):
        if model := attempt(change):
            add(model)
        else:
            print(name, "does not take", change, file=sys.stderr)
    single, silent = [], []
    for key, value in default.items():
        for other in alternatives(cls, key, value):
            if key in DEEP and other > MOST:
                other = MOST // 2
            if (model := attempt({key: other})) is not None:
                (single if count(model) != usual else silent).append(({key: other}, model))
    shuffled.shuffle(single), shuffled.shuffle(silent)
    for change, model in single[: max(10, CHANGES // 2)] + silent[:3]:
        add(model)
    tried = 0
    while len(result["changed"]) < CHANGES and tried < 10 * CHANGES:
        tried += 1
        parts = shuffled.sample(single, min(len(single), shuffled.randint(2, 4)))
        if model := attempt({k: v for change, _ in parts for k, v in change.items()}):
            add(model)
    return result


def main(names):
    types = []
    for name in names:
        r = changes(name)
        print(name, len(r["changed"]), file=sys.stderr, flush=True)
        lines = ",\n".join(json.dumps(c) for c in r["changed"])
        types.append(f'{json.dumps(name)}: {{"config": {json.dumps(r["config"])},\n"params": {r["params"]}, "changed": [\n{lines}]}}')
    print(f'{{"torch": {json.dumps(torch.__version__)}, "diffusers": {json.dumps(diffusers.__version__)},')
    print(",\n".join(types) + "\n}")


if __name__ == "__main__":
    main([a for a in sys.argv[1:] if a != "-v"])
