#!/usr/bin/env bash
# Guess: the peak in XLA's live-range file is at most the total of all its allocations: what is live at once was allocated.
# Version: jax 0.10.2, jaxlib 0.10.2 (PyPI), --xla_dump_to, on the CPU; the gradient of a scan over four layers of an MLP.
# Behaviour: the cumulative bytes at the peak go past the total of the buffer assignment, because values that share one
#   allocation are added up as if each had its own.
# Seen: live at the peak 81264652 bytes, all allocations together 77070700.
# Source: the files *-live-range.txt, *-memory-usage-report.txt and *-buffer-assignment.txt of a dump; HloLiveRange and
#   BufferAssignment of github.com/openxla/xla.
# Why: the live-range file is the one that names what is live at the peak, so people take its last cumulative figure for the
#   program's need. It can be too high: the need is in the buffer assignment.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu XLA_FLAGS="--xla_dump_to=$dir/dump" "$dir/venv/bin/python" - "$dir/dump" <<'EOF'
import glob
import re
import sys

import jax


def loss(layers, x):
    def layer(x, weights):
        up, down = weights
        return x + jax.nn.gelu(x @ up) @ down, None

    x, _ = jax.lax.scan(layer, x, layers)
    return (x * x).sum()


def shape(*dims):
    return jax.ShapeDtypeStruct(dims, "float32")


jax.jit(jax.grad(loss)).lower((shape(4, 256, 1024), shape(4, 1024, 256)), shape(512, 256)).compile()


def dumped(name, pattern):
    (path,) = glob.glob(f"{sys.argv[1]}/*jit_loss*{name}.txt")
    with open(path, encoding="utf-8") as file:
        return [int(n) for n in re.findall(pattern, file.read(), re.MULTILINE)]


live = max(dumped("-live-range", r"cumulative: (\d+) bytes"))
allocated = sum(dumped("-buffer-assignment", r"^allocation \d+: size (\d+)"))
figures = f"live at the peak {live} bytes, all allocations together {allocated}"
if live <= allocated:
    sys.exit(f"xla-live-range-above-total: changed: {figures}")
print(f"xla-live-range-above-total: holds: {figures}")
EOF
