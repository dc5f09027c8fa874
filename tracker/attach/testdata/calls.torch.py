# Runs random operations of PyTorch on the CPU, some in modules, some backwards, and keeps nothing. It is the same in each run: one thread,
# one seed. It prints "done", and waits for the end of its input.
import random
import signal
import sys

import torch
from torch import nn
from torch.nn import functional as F

signal.raise_signal(signal.SIGURG)  # see callers.py
torch.set_num_threads(1)
torch.manual_seed(1)
random.seed(1)


def rand(*shape):
    return torch.randn(*shape, requires_grad=random.random() < 0.5)


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(n), nn.Linear(n, 2 * n), nn.Linear(2 * n, n)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def side():
    return random.randint(3, 40)


operations = [
    lambda: rand(side(), side()).relu().sum(),
    lambda: torch.matmul(rand(side(), 16), rand(16, side())),
    lambda: torch.cat([rand(side(), 8), rand(side(), 8)]).t().contiguous(),
    lambda: rand(side(), side()).sort(dim=0).values,
    lambda: rand(side() + 4).topk(3).values.exp(),
    lambda: torch.arange(side() * 3).unique(return_counts=True)[1],
    lambda: F.conv2d(rand(2, 3, side() + 5, side() + 5), rand(4, 3, 3, 3), padding=1),
    lambda: F.max_pool2d(rand(1, 2, 2 * side(), 2 * side()), 2),
    lambda: F.batch_norm(rand(4, side()), None, None, training=True),
    lambda: F.softmax(rand(side(), side()), dim=1).log(),
    lambda: F.scaled_dot_product_attention(*[rand(1, 2, side(), 8)] * 3),
    lambda: F.embedding(torch.randint(0, 9, (side(),)), rand(9, 6)),
    lambda: torch.einsum("ij,kj->ik", rand(side(), 5), rand(side(), 5)),
    lambda: torch.fft.rfft(rand(side() * 2)).abs(),
    lambda: torch.linalg.svd(torch.randn(side(), 4)).S,
    lambda: torch.linalg.solve(torch.eye(5) + torch.rand(5, 5), rand(5, side())),
    lambda: rand(side(), side()).cumsum(0).cumprod(1),
    lambda: rand(3, side())[torch.randint(0, 3, (side(),))],
    lambda: torch.where(rand(side(), 1) > 0, rand(1, 7), torch.zeros(1, 7)),
    lambda: F.interpolate(rand(1, 1, side(), side()), scale_factor=2, mode="bilinear"),
    lambda: torch.bmm(rand(2, side(), 6), rand(2, 6, side())).half().float(),
    lambda: rand(side()).nonzero(),
    lambda: Block(7)(rand(side(), 7)),
    lambda: nn.Sequential(Block(12), nn.Dropout(0.3), Block(12))(rand(side(), 12)),
    lambda: nn.LSTM(6, side())(rand(side(), 2, 6))[0],
    lambda: nn.MultiheadAttention(8, 2)(*[rand(side(), 1, 8)] * 3)[0],
    lambda: nn.TransformerEncoderLayer(8, 2, dim_feedforward=16)(rand(side(), 1, 8)),
    lambda: torch.tensor([random.random() for _ in range(side())]).median(),
    lambda: torch.stack([rand(6) for _ in range(random.randint(2, 5))]).std(0),
    lambda: torch.vmap(lambda x: x.sin().sum())(rand(side(), 3)),
]


def backwards(of):
    if of.is_floating_point() and of.requires_grad:
        of.sum().backward()


def call(depth):
    if depth > 0:
        return call(depth - 1)
    backwards(random.choice(operations)())


def trained():
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 8, 3))
    optimizer = random.choice([torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop, torch.optim.AdamW])(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(5, 2, 10)), torch.randint(0, 3, (5,))).backward()
        optimizer.step()


for i in range(int(sys.argv[1])):
    if random.random() < 0.05:
        trained()
    else:
        call(random.randint(0, 3))
print("done", flush=True)
sys.stdin.read()
