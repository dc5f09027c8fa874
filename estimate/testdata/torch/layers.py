"""Measure what PyTorch's layers keep, one by one, for the tests of package estimate.

    python layers.py > layers.json

Each layer stands behind one that adds a parameter, so that its input needs a
gradient. Parameters, buffers, the output's shape, and the bytes that autograd keeps
(see saved_bytes in measure.py), on the CPU.
"""

import json

import torch
from torch import nn

from torchvision.models.convnext import LayerNorm2d
from torchvision.models.swin_transformer import PatchMerging, ShiftedWindowAttention
from torchvision.ops.misc import Permute, SqueezeExcitation

from measure import saved_bytes


class Add(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))

    def forward(self, x):
        return x + self.weight


class Loss(nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def forward(self, x):
        if isinstance(self.loss, (nn.CrossEntropyLoss, nn.NLLLoss)):
            return self.loss(x, torch.zeros(x.shape[0], *x.shape[2:], dtype=torch.long))
        return self.loss(x, torch.zeros_like(x))


class CTC(nn.Module):
    """Texts of five letters in twelve steps."""

    def forward(self, x):
        steps, batch = x.shape[:2]
        return nn.functional.ctc_loss(x, torch.ones(batch, 5, dtype=torch.long), torch.full((batch,), steps), torch.full((batch,), 5))


class Sum(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x):
        return self.a(x) + self.b(x)


LAYERS = {
    "Conv1d": (nn.Conv1d(6, 8, 3, stride=2, padding=1, dilation=2, groups=2), (2, 6, 32)),
    "Conv2d": (nn.Conv2d(6, 8, (3, 5), stride=(2, 1), padding=(1, 2), groups=2, bias=False), (2, 6, 32, 30)),
    "Conv3d": (nn.Conv3d(4, 8, 3, stride=(1, 2, 2), padding=1), (2, 4, 8, 16, 16)),
    "ConvTranspose1d": (nn.ConvTranspose1d(6, 8, 4, stride=2, padding=1), (2, 6, 32)),
    "ConvTranspose2d": (nn.ConvTranspose2d(6, 8, 3, stride=2, padding=1, output_padding=1, groups=2, dilation=2), (2, 6, 15, 16)),
    "ConvTranspose3d": (nn.ConvTranspose3d(4, 6, 2, stride=2, bias=False), (2, 4, 6, 7, 8)),
    "Linear": (nn.Linear(16, 24), (4, 10, 16)),
    "Embedding": (nn.Embedding(10, 4), (2, 3)),
    "BatchNorm1d": (nn.BatchNorm1d(16), (8, 16, 5)),
    "BatchNorm3d": (nn.BatchNorm3d(4), (2, 4, 5, 6, 7)),
    "BatchNorm2d NoAffine": (nn.BatchNorm2d(4, affine=False), (2, 4, 6, 7)),
    "BatchNorm2d NoStats": (nn.BatchNorm2d(4, track_running_stats=False), (2, 4, 6, 7)),
    "LayerNorm": (nn.LayerNorm(16), (4, 10, 16)),
    "LayerNorm NoBias": (nn.LayerNorm(16, bias=False), (4, 10, 16)),
    "LayerNorm NoAffine": (nn.LayerNorm(16, elementwise_affine=False), (4, 10, 16)),
    "GroupNorm": (nn.GroupNorm(2, 8), (4, 8, 5, 6)),
    "RMSNorm": (nn.RMSNorm(16), (4, 10, 16)),
    "ReLU": (nn.ReLU(), (4, 16)),
    "ReLU InPlace": (nn.ReLU(inplace=True), (4, 16)),
    "ReLU6": (nn.ReLU6(), (4, 16)),
    "ReLU6 InPlace": (nn.ReLU6(inplace=True), (4, 16)),
    "SiLU": (nn.SiLU(), (4, 16)),
    "SiLU InPlace": (nn.SiLU(inplace=True), (4, 16)),
    "GELU": (nn.GELU(), (4, 16)),
    "Sigmoid": (nn.Sigmoid(), (4, 16)),
    "Tanh": (nn.Tanh(), (4, 16)),
    "Softmax": (nn.Softmax(-1), (4, 16)),
    "LogSoftmax": (nn.LogSoftmax(-1), (4, 16)),
    "Dropout": (nn.Dropout(0.3), (4, 16)),
    "Dropout InPlace": (nn.Dropout(0.3, inplace=True), (4, 16)),
    "Dropout2d": (nn.Dropout2d(0.3), (2, 4, 6, 7)),
    "MaxPool3d Kernels": (nn.MaxPool3d((1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1)), (2, 4, 6, 9, 10)),
    "MaxPool3d Frames": (nn.MaxPool3d((2, 1, 1)), (2, 4, 6, 7, 8)),
    "MaxPool1d": (nn.MaxPool1d(3, stride=2, padding=1), (2, 4, 17)),
    "MaxPool2d Ceil": (nn.MaxPool2d(3, stride=2, ceil_mode=True), (2, 4, 16, 18)),
    "MaxPool2d Dilation": (nn.MaxPool2d(3, stride=1, dilation=2), (2, 4, 16, 18)),
    "MaxPool3d": (nn.MaxPool3d(2), (2, 4, 6, 7, 8)),
    "AvgPool1d": (nn.AvgPool1d(2), (2, 4, 17)),
    "AvgPool2d": (nn.AvgPool2d(3, stride=2, padding=1), (2, 4, 16, 18)),
    "AvgPool3d": (nn.AvgPool3d(2), (2, 4, 6, 7, 8)),
    "AdaptiveAvgPool1d": (nn.AdaptiveAvgPool1d(5), (2, 4, 17)),
    "AdaptiveAvgPool2d": (nn.AdaptiveAvgPool2d(7), (2, 4, 16, 18)),
    "AdaptiveAvgPool3d": (nn.AdaptiveAvgPool3d(3), (2, 4, 6, 7, 8)),
    "AdaptiveAvgPool1d 1": (nn.AdaptiveAvgPool1d(1), (2, 4, 17)),
    "AdaptiveAvgPool2d 1": (nn.AdaptiveAvgPool2d(1), (2, 4, 16, 18)),
    "AdaptiveAvgPool3d 1": (nn.AdaptiveAvgPool3d(1), (2, 4, 6, 7, 8)),
    "Flatten": (nn.Flatten(), (2, 4, 6)),
    "Unflatten": (nn.Unflatten(1, (2, 2)), (2, 4, 6)),
    "Upsample": (nn.Upsample(scale_factor=2), (2, 4, 6, 7)),
    "Upsample 1d": (nn.Upsample(scale_factor=3), (2, 4, 6)),
    "CrossEntropy": (Loss(nn.CrossEntropyLoss()), (4, 10)),
    "CrossEntropy 2d": (Loss(nn.CrossEntropyLoss()), (4, 10, 3, 5)),
    "MSE": (Loss(nn.MSELoss()), (4, 10)),
    "L1": (Loss(nn.L1Loss()), (4, 10)),
    "BCEWithLogits": (Loss(nn.BCEWithLogitsLoss()), (4, 10)),
    "Hardswish": (nn.Hardswish(), (4, 16)),
    "Hardswish InPlace": (nn.Hardswish(inplace=True), (4, 16)),
    "Hardsigmoid": (nn.Hardsigmoid(), (4, 16)),
    "LeakyReLU": (nn.LeakyReLU(), (4, 16)),
    "LeakyReLU InPlace": (nn.LeakyReLU(inplace=True), (4, 16)),
    "ELU": (nn.ELU(), (4, 16)),
    "ELU InPlace": (nn.ELU(inplace=True), (4, 16)),
    "PReLU": (nn.PReLU(16), (4, 16)),
    "Mish": (nn.Mish(), (4, 16)),
    "InstanceNorm": (nn.InstanceNorm2d(4), (3, 4, 6, 7)),
    "InstanceNorm Affine": (nn.InstanceNorm2d(4, affine=True), (3, 4, 6, 7)),
    "LocalResponseNorm": (nn.LocalResponseNorm(5), (2, 8, 6, 7)),
    "AdaptiveMaxPool": (nn.AdaptiveMaxPool2d(3), (2, 4, 16, 18)),
    "PixelShuffle": (nn.PixelShuffle(2), (2, 8, 6, 7)),
    "LayerNorm2d": (LayerNorm2d(8), (2, 8, 6, 7)),
    "Permute": (Permute([0, 2, 3, 1]), (2, 8, 6, 7)),
    "SqueezeExcitation": (SqueezeExcitation(8, 4), (2, 8, 6, 7)),
    "SqueezeExcitation Hard": (SqueezeExcitation(8, 4, scale_activation=nn.Hardsigmoid), (2, 8, 6, 7)),
    "NLL": (Loss(nn.NLLLoss()), (4, 10)),
    "Huber": (Loss(nn.HuberLoss()), (4, 10)),
    "SmoothL1": (Loss(nn.SmoothL1Loss()), (4, 10)),
    "KLDiv": (Loss(nn.KLDivLoss(reduction="batchmean")), (4, 10)),
    "CTC": (CTC(), (12, 3, 10)),
    "ZeroPad2d": (nn.ZeroPad2d((1, 2, 0, -1)), (2, 8, 6, 7)),
    "Permute Linear": (nn.Sequential(Permute([0, 2, 1]), Sum(nn.Linear(8, 12), nn.Linear(8, 12))), (2, 8, 5)),
    "Permute Linear 1": (nn.Sequential(Permute([0, 2, 3, 1]), Sum(nn.Linear(8, 12), nn.Linear(8, 12))), (1, 8, 5, 6)),
    "Permute Linear Heads": (nn.Sequential(Permute([0, 2, 1, 3]), Sum(nn.Linear(6, 12), nn.Linear(6, 12))), (1, 8, 5, 6)),
    "WindowAttention": (ShiftedWindowAttention(16, [4, 4], [0, 0], 2), (2, 8, 12, 16)),
    "WindowAttention Shifted": (ShiftedWindowAttention(16, [4, 4], [2, 2], 2), (2, 10, 12, 16)),
    "WindowAttention Small": (ShiftedWindowAttention(16, [4, 4], [2, 2], 2), (2, 3, 4, 16)),
    "PatchMerging": (PatchMerging(8), (2, 7, 6, 8)),
}


def measure(layer, size):
    tokens = isinstance(layer, nn.Embedding)
    x = torch.zeros(size, dtype=torch.long if tokens else torch.float32)
    model = layer if tokens else nn.Sequential(Add(size[1:]), layer)
    return {
        "input": list(size),
        "output": list(model(x).shape),
        "params": sum(p.numel() for p in layer.parameters()),
        "buffers": sum(b.numel() for b in layer.buffers()),
        "saved_bytes": saved_bytes(model, x),
    }


def main():
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(measure(*v))}" for k, v in LAYERS.items())
    print(f'{{"torch": {json.dumps(torch.__version__)}, "layers": {{\n{lines}\n}}}}')


if __name__ == "__main__":
    main()
