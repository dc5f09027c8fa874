#!/usr/bin/env bash
# Guess: the peak that a compiled program reports covers everything that is in use at one moment: arguments, temporaries
#   and output.
# Version: jax 0.10.2, jaxlib 0.10.2 (PyPI), on the CPU.
# Behaviour: peak_memory_in_bytes is arguments plus output; temporaries are left out of it.
# Seen: for (w @ w) @ w of 4096 x 4096 floats, arguments 67108864, output 67108864, temporaries 67108864, peak 134217728.
#   The second product reads the argument and the temporary, and writes the output: 201326592 bytes at once.
# Source: jax.stages.Compiled.memory_analysis; CompiledMemoryStats of github.com/openxla/xla.
# Why: memory_analysis() is how people ask JAX, before a run, whether a program fits a GPU. A planner that is tried on the
#   CPU first and takes the field named peak is too low by all the temporaries.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$dir/venv/bin/python" - <<'EOF'
import sys

import jax

w = jax.ShapeDtypeStruct((4096, 4096), "float32")
stats = jax.jit(lambda w: (w @ w) @ w).lower(w).compile().memory_analysis()
arguments, output = stats.argument_size_in_bytes, stats.output_size_in_bytes
temporaries, peak = stats.temp_size_in_bytes, stats.peak_memory_in_bytes
figures = f"arguments {arguments}, output {output}, temporaries {temporaries}, peak {peak}"
if temporaries < w.size * 4 or peak != arguments + output:
    sys.exit(f"jax-peak-memory: changed: {figures}")
print(f"jax-peak-memory: holds: {figures}")
EOF
