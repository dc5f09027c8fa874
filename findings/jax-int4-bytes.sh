#!/usr/bin/env bash
# Guess: the bytes that an int4 array gives for itself and those that the compiled program needs for it are one number.
# Version: jax 0.10.2, jaxlib 0.10.2, ml_dtypes 0.6.0 (PyPI), on the CPU.
# Behaviour: XLA packs two elements into a byte; nbytes and on_device_size_in_bytes count a byte for each element.
# Seen: 268435456 elements: nbytes and on_device_size_in_bytes 268435456, compiled output 134217728; the process grew by
#   some 136 million bytes.
# Source: jax.Array.nbytes (size times dtype.itemsize); jax.stages.Compiled.memory_analysis, which is CompiledMemoryStats of
#   github.com/openxla/xla.
# Why: weights of 4 bits are there to halve memory. A sum over jax.live_arrays() says that they do not, and is above what
#   the device holds.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 ml_dtypes==0.6.0
JAX_PLATFORMS=cpu "$dir/venv/bin/python" - <<'EOF'
import os
import sys

import jax
import jax.numpy as jnp

ELEMENTS = 1 << 28


def resident():
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


three = jnp.int4(3)
program = jax.jit(lambda k: jnp.full((ELEMENTS,), k, jnp.int4)).lower(three).compile()
before = resident()
array = program(three)
array.block_until_ready()
grown = resident() - before
says, device = array.nbytes, array.on_device_size_in_bytes()
compiled = program.memory_analysis().output_size_in_bytes
figures = f"{ELEMENTS} elements: nbytes {says}, on device {device}, compiled {compiled}, process grew by {grown}"
if (says, device, compiled) != (ELEMENTS, ELEMENTS, ELEMENTS // 2) or grown > ELEMENTS * 3 // 4:
    sys.exit(f"jax-int4-bytes: changed: {figures}")
print(f"jax-int4-bytes: holds: {figures}")
EOF
