#!/usr/bin/env bash
# Guess: memory that nobody can touch is no memory for memray: a mapping without access, as GPU runtimes make to reserve
#   addresses, does not raise the peak.
# Version: memray 1.20.0, safetensors 0.8.0, numpy 2.4.6 (PyPI), Linux.
# Behaviour: every mmap counts with its full length, whatever its protection; a file of weights that is mapped and not read
#   counts too.
# Seen: 64 GiB reserved with PROT_NONE and MAP_NORESERVE: peak 68.7 billion bytes, none of them usable; safe_open of a
#   file of 64 MiB, no tensor read: some 68 million bytes more than the imports alone.
# Source: the page "Memory overview" of memray's documentation; issue 778 of github.com/bloomberg/memray for files.
# Why: CUDA, ROCm and allocators with expandable segments reserve address space of tens of GiB up front. The host profile of a
#   program with a GPU then has a peak that is not memory, and loaders of weights that do not copy look as if they did.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet memray==1.20.0 safetensors==0.8.0 numpy==2.4.6
cd "$dir"
cat >reserve.py <<'EOF'
import mmap

MAP_NORESERVE = 0x4000
PROT_NONE = 0
reserved = mmap.mmap(-1, 64 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE, prot=PROT_NONE)
EOF
cat >weights.py <<'EOF'
from safetensors import safe_open

weights = safe_open("weights.safetensors", "np")
EOF
cat >nothing.py <<'EOF'
import numpy
import safetensors
EOF
venv/bin/python - <<'EOF'
import json
import subprocess
import sys

import numpy as np
from safetensors.numpy import save_file

save_file({"w": np.ones((4096, 4096), np.float32)}, "weights.safetensors")


def peak(script):
    memray = [sys.executable, "-m", "memray"]
    subprocess.run([*memray, "run", "-q", "-o", f"{script}.bin", f"{script}.py"], check=True)
    subprocess.run([*memray, "stats", "--json", "-o", f"{script}.json", f"{script}.bin"], check=True, stdout=subprocess.DEVNULL)
    with open(f"{script}.json", encoding="utf-8") as file:
        return json.load(file)["metadata"]["peak_memory"]


reserved, mapped = peak("reserve"), peak("weights") - peak("nothing")
figures = f"peak {reserved} with {64 << 30} reserved and none usable; {mapped} more with {64 << 20} mapped and none read"
if reserved < 64 << 30 or mapped < 60 << 20:
    sys.exit(f"memray-address-space: changed: {figures}")
print(f"memray-address-space: holds: {figures}")
EOF
