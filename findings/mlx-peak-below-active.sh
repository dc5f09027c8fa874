#!/usr/bin/env bash
# Guess: after mlx.core.reset_peak_memory() the peak is what is in use at that moment, as in PyTorch, never less.
# Version: mlx 0.32.4 with mlx-cpu 0.32.4 (PyPI, Linux).
# Behaviour: the peak becomes 0 and stays there until the next allocation, whatever is in use.
# Seen: 67108864 bytes in use, peak 0; after one more allocation of 4 KiB the peak is above 67108864 again.
# Source: the docstring of reset_peak_memory; mlx/allocator of github.com/ml-explore/mlx.
# Why: a step that allocates nothing new is measured as a peak of 0, and a chart of peaks for each step falls below the
#   weights. Code that was written for PyTorch's reset_peak_memory_stats takes the peak as a bound of what is in use.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet mlx==0.32.4 mlx-cpu==0.32.4
"$dir/venv/bin/python" - <<'EOF'
import sys

import mlx.core as mx

mx.set_default_device(mx.cpu)
weights = mx.zeros((4096, 4096))
mx.eval(weights)
mx.reset_peak_memory()
active, peak = mx.get_active_memory(), mx.get_peak_memory()
small = mx.zeros((1024,))
mx.eval(small)
later = mx.get_peak_memory()
figures = f"in use {active}, peak after the reset {peak}, after one more allocation {later}"
if active < 64 << 20 or peak != 0 or later < active:
    sys.exit(f"mlx-peak-below-active: changed: {figures}")
print(f"mlx-peak-below-active: holds: {figures}")
EOF
