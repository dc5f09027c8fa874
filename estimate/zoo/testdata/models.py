"""Measure parameters and kept bytes of models, for the tests of package zoo.

    python models.py > models.json

It needs torch, torchvision, transformers and diffusers. Nothing is computed: models and inputs are
fake tensors on the CPU (torch's FakeTensorMode), of which autograd keeps what it would keep of real
ones. Kept are the bytes of unique storages seen by saved-tensor hooks, without parameters and buffers.
"""

import json
import sys

import torch
import torchvision.models as V
import transformers as T
from diffusers import UNet2DModel
from torch._subclasses.fake_tensor import FakeTensorMode

torch.nn.init.trunc_normal_ = lambda t, *args, **kwargs: t  # which looks at values


def image(n, side=224, channels=3):
    return lambda: (torch.empty(n, channels, side, side),)


def tokens(*shapes):
    return lambda: tuple(torch.zeros(s, dtype=torch.long) for s in shapes)


UNET = dict(sample_size=32, block_out_channels=(128, 256, 256, 256), downsample_padding=0, flip_sin_to_cos=False,
            freq_shift=1, norm_eps=1e-6, act_fn="silu", attention_head_dim=None,
            down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"))

MODELS = {
    "densenet201": (V.densenet201, image(2)),
    "mobilenet_v3_large": (V.mobilenet_v3_large, image(2)),
    "convnext_tiny": (V.convnext_tiny, image(2)),
    "swin_t": (V.swin_t, image(2)),
    "t5-small": (lambda: T.T5ForConditionalGeneration(T.T5Config()), tokens((2, 64), (2, 32))),
    "unet-cifar10": (lambda: UNet2DModel(**UNET), lambda: (torch.empty(2, 3, 32, 32), torch.zeros(2, dtype=torch.long))),
}


def call(name, model, args):
    if name == "t5-small":
        return model(input_ids=args[0], decoder_input_ids=args[1], use_cache=False).logits
    out = model(*args)
    return out.sample if hasattr(out, "sample") else out


def measure(name, build, inputs):
    with FakeTensorMode():
        model = build()
        model.train()
        args = inputs()
        own = {t.untyped_storage()._cdata for t in [*model.parameters(), *model.buffers()]}
        seen = {}

        def pack(t):
            s = t.untyped_storage()
            if s._cdata not in own:
                seen[s._cdata] = (s, s.nbytes(), list(t.shape))
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            out = call(name, model, args)
        if "-v" in sys.argv:
            for _, n, shape in seen.values():
                print(name, n, shape, file=sys.stderr)
        return {
            "inputs": [list(a.shape) for a in args],
            "output": list(out.shape),
            "params": sum(p.numel() for p in model.parameters()),
            "buffer_bytes": sum(b.numel() * b.element_size() for b in model.buffers()),
            "saved_bytes": sum(n for _, n, _ in seen.values()),
        }


def main():
    names = [a for a in sys.argv[1:] if a in MODELS] or list(MODELS)
    lines = ",\n".join(f"{json.dumps(n)}: {json.dumps(measure(n, *MODELS[n]))}" for n in names)
    print(f'{{"torch": {json.dumps(torch.__version__)}, "torchvision": {json.dumps(torchvision_version())}, '
          f'"transformers": {json.dumps(T.__version__)}, "models": {{\n{lines}\n}}}}')


def torchvision_version():
    import torchvision
    return torchvision.__version__


if __name__ == "__main__":
    main()
