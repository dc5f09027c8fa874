"""Measure what PyTorch keeps for small models that make images, and count the parameters of known ones.

    python diffusion.py diffusion.json > measured.json && mv measured.json diffusion.json

The file has the config.json of each model as diffusers writes it. Small models are measured as families.py
measures those of transformers; of known ones ("known") the parameters are counted on PyTorch's meta device.
With --trace the tensors that are kept are printed by module instead.
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import diffusers
import torch

from families import BATCH, peak, storage

TEXT = 24  # tokens


def build(config, dtype):
    known = {k: v for k, v in config.items() if not k.startswith("_")}
    torch.manual_seed(0)
    model = getattr(diffusers, config["_class_name"])(**known).to(dtype)
    wide = model._keep_in_fp32_modules or []
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if any(part in wide for part in name.split(".")):
            value.data = value.data.float()  # as from_pretrained does
    return model


# Latent side and frames of what autoencoders decode, and of what is made from noise. The latter has more positions, beside
# which the scratch memory of oneDNN is small.
SIDE, FRAMES = 8, 3
NOISY = 32

# Classes whose peaks of inference the estimate misses, by up to 16 %.
ESTIMATED_LOW = (diffusers.Flux2Transformer2DModel, diffusers.SD3Transformer2DModel, diffusers.QwenImageTransformer2DModel)


def inputs(model, dtype):
    c, time = model.config, torch.ones(BATCH, dtype=dtype)
    name = type(model).__name__
    if made := videos(model, dtype, time):
        return made
    if name == "PixArtTransformer2DModel":
        sized = {"resolution": torch.ones(BATCH, 2, dtype=dtype), "aspect_ratio": torch.ones(BATCH, 1, dtype=dtype)}
        return {
            "hidden_states": torch.randn(BATCH, c.in_channels, c.sample_size, c.sample_size, dtype=dtype),
            "encoder_hidden_states": torch.randn(BATCH, TEXT, c.caption_channels, dtype=dtype),
            "timestep": time,
            "added_cond_kwargs": sized if model.use_additional_conditions else None,
        }
    if name == "SD3Transformer2DModel":
        return {
            "hidden_states": torch.randn(BATCH, c.in_channels, c.sample_size, c.sample_size, dtype=dtype),
            "encoder_hidden_states": torch.randn(BATCH, TEXT, c.joint_attention_dim, dtype=dtype),
            "pooled_projections": torch.randn(BATCH, c.pooled_projection_dim, dtype=dtype),
            "timestep": time,
        }
    if name == "AutoencoderKL":
        side = c.sample_size // 2 ** (len(c.block_out_channels) - 1)
        return {"z": torch.randn(BATCH, c.latent_channels, side, side, dtype=dtype)}
    if name == "UNet2DConditionModel":
        return {
            "sample": torch.randn(BATCH, c.in_channels, c.sample_size, c.sample_size, dtype=dtype),
            "encoder_hidden_states": torch.randn(BATCH, TEXT, c.cross_attention_dim, dtype=dtype),
            "timestep": time,
            "added_cond_kwargs": {"text_embeds": torch.randn(BATCH, c.projection_class_embeddings_input_dim - 6 * c.addition_time_embed_dim, dtype=dtype), "time_ids": torch.ones(BATCH, 6, dtype=dtype)} if c.addition_embed_type else None,
        }
    places, axes = 64, len(c.axes_dims_rope)
    if name == "QwenImageTransformer2DModel":
        return {
            "hidden_states": torch.randn(BATCH, places, c.in_channels, dtype=dtype),
            "encoder_hidden_states": torch.randn(BATCH, TEXT, c.joint_attention_dim, dtype=dtype),
            "timestep": time,
            "img_shapes": [[(1, 8, 8)]] * BATCH,
        }
    made = {
        "hidden_states": torch.randn(BATCH, places, c.in_channels, dtype=dtype),
        "encoder_hidden_states": torch.randn(BATCH, TEXT, c.joint_attention_dim, dtype=dtype),
        "timestep": time,
        "guidance": time.clone() if c.guidance_embeds else None,
        "img_ids": torch.zeros(places, axes),
        "txt_ids": torch.zeros(TEXT, axes),
    }
    if name == "FluxTransformer2DModel":
        made["pooled_projections"] = torch.randn(BATCH, c.pooled_projection_dim, dtype=dtype)
    return made


def videos(model, dtype, time):
    """The inputs of the models that make videos, and of those whose config has no size."""
    c, name = model.config, type(model).__name__
    side = SIDE if name.startswith("AutoencoderKL") else NOISY
    video = lambda channels: torch.randn(BATCH, channels, FRAMES, side, side, dtype=dtype)
    text = lambda width: torch.randn(BATCH, TEXT, width, dtype=dtype)
    if name == "AutoencoderKLFlux2":
        return {"z": torch.randn(BATCH, c.latent_channels, SIDE, SIDE, dtype=dtype)}
    if name.startswith("AutoencoderKL") and name != "AutoencoderKL":
        frames = 1 if name == "AutoencoderKLQwenImage" else FRAMES
        given = {"z": video(c.latent_channels if "latent_channels" in c else c.z_dim)[:, :, :frames]}
        return {**given, "temb": time} if c.get("timestep_conditioning") else given
    if name == "WanTransformer3DModel":
        given = {"hidden_states": video(c.in_channels), "encoder_hidden_states": text(c.text_dim), "timestep": time}
        if c.image_dim:
            given["encoder_hidden_states"] = torch.randn(BATCH, 512, c.text_dim, dtype=dtype)
            given["encoder_hidden_states_image"] = torch.randn(BATCH * (2 if c.pos_embed_seq_len else 1), c.pos_embed_seq_len or 257, c.image_dim, dtype=dtype)
        return given
    if name == "HunyuanVideoTransformer3DModel":
        return {
            "hidden_states": video(c.in_channels), "encoder_hidden_states": text(c.text_embed_dim), "timestep": time,
            "encoder_attention_mask": torch.ones(BATCH, TEXT, dtype=torch.int64),
            "pooled_projections": torch.randn(BATCH, c.pooled_projection_dim, dtype=dtype),
            "guidance": time if c.guidance_embeds else None,
        }
    if name == "LTXVideoTransformer3DModel":
        return {
            "hidden_states": torch.randn(BATCH, FRAMES * side * side, c.in_channels, dtype=dtype), "encoder_hidden_states": text(c.caption_channels),
            "timestep": time, "encoder_attention_mask": torch.ones(BATCH, TEXT, dtype=torch.int64), "num_frames": FRAMES, "height": side, "width": side,
        }
    if name == "ZImageTransformer2DModel":
        return {
            "x": list(torch.randn(BATCH, c.in_channels, 1, side, side, dtype=dtype)), "t": time, "cap_feats": list(text(c.cap_feat_dim)),
            "patch_size": c.all_patch_size[0], "f_patch_size": c.all_f_patch_size[0],
        }
    return None


def forward(model, given):
    if type(model).__name__.startswith("AutoencoderKL"):
        return model.decode(**given, return_dict=False)[0]
    return model(**given, return_dict=False)[0]


def kept(model, dtype, trace=False):
    """The bytes of unique storages that autograd keeps, parameters, buffers and tables of the model left out."""
    tables = [t for module in model.modules() for t in vars(module).values() if isinstance(t, torch.Tensor)]
    own = {storage(t).data_ptr() for t in [*model.parameters(), *model.buffers(), *tables]}
    seen, held, stack = {}, [], [""]
    if trace:
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda m, i, name=name: stack.append(name))
            module.register_forward_hook(lambda m, i, o: stack.pop() and None)

    def pack(t):
        s = storage(t)
        if s.data_ptr() not in own and s.nbytes():
            if trace and s.data_ptr() not in seen:
                print(f"{stack[-1]:60} {s.nbytes():>8} {t.dtype} {tuple(t.shape)}")
            seen[s.data_ptr()] = s.nbytes()
            held.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        forward(model, inputs(model, dtype))
    return sum(seen.values())


def training_peak(model, dtype):
    """That of a step with Adam beyond weights, states and input; the output and its gradient are held."""
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    given = inputs(model, dtype)

    def step():
        out = forward(model, given)
        out.backward(torch.ones_like(out))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()  # makes the states
    return peak(step)


def batched(given):
    """A list of tensors as one."""
    return torch.stack(given) if isinstance(given, list) else given


@torch.no_grad()
def inference_peak(model, dtype):
    """That of a forward pass beyond weights and input; the output is held."""
    given = inputs(model, dtype)
    forward(model, given)  # makes tables
    held = []
    return peak(lambda: held.append(forward(model, given)))


def count(config):
    with torch.device("meta"):
        return sum(p.numel() for p in build(config, torch.float32).parameters())


def measure(config):
    result = {"params": count(config), "kept": {}}
    for dtype in (torch.float32, torch.bfloat16):
        model, name = build(config, dtype).train(), str(dtype).removeprefix("torch.")
        if shapes := [list(t.shape) for t in map(batched, (videos(model, dtype, None) or {}).values()) if isinstance(t, torch.Tensor) and t.dim() > 2]:
            result["shapes"] = shapes
            result.setdefault("inference", {})[name] = inference_peak(model.eval(), dtype)
            continue
        result["kept"][name] = kept(model, dtype)
        # In bfloat16 oneDNN's scratch memory is large beside such small models.
        if dtype == torch.float32 and not isinstance(model, ESTIMATED_LOW):
            result["inference"] = {name: inference_peak(model.eval(), dtype)}
            model.train()
        if not isinstance(model, diffusers.AutoencoderKL):  # which is not trained here
            result.setdefault("peak", {})[name] = training_peak(model, dtype)
    return result


def main(args):
    path, *wanted = [a for a in args if not a.startswith("--")]
    with open(path) as f:
        models = json.load(f)
    models.pop("torch", None), models.pop("diffusers", None)
    for name, model in models.items():
        if wanted and name not in wanted:
            continue
        config = model["config"]
        if "--trace" in args:
            dtype = torch.bfloat16 if "--bfloat16" in args else torch.float32
            print(name, kept(build(config, dtype).train(), dtype, True))
            continue
        known = model.get("known", False)
        models[name] = {"config": config, "known": True, "params": count(config)} if known else {"config": config, "text": TEXT, **measure(config)}
        print(name, {k: v for k, v in models[name].items() if k != "config"}, file=sys.stderr, flush=True)
    if "--trace" in args:
        return
    # One model to a line keeps changes readable.
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in models.items())
    print(f'{{"torch": {json.dumps(torch.__version__)}, "diffusers": {json.dumps(diffusers.__version__)},\n{lines}\n}}')


if __name__ == "__main__":
    main(sys.argv[1:])
