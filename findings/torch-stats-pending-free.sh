#!/usr/bin/env bash
# Guess: a block that was freed while another stream still uses it (state active_pending_free; the documentation writes
#   active_awaiting_free) is not free in PyTorch's `_memory_viz.py stats`: the allocator cannot give it to anyone.
# Version: torch 2.15.0 (PyPI); the file torch/cuda/_memory_viz.py of its smallest wheel, which plain Python runs.
# Behaviour: every block that is not active_allocated is free: total_free has it, and the map of the segment shows a gap.
# Seen: a segment of 60 MiB, 40 allocated and 20 pending: "total_free: 20.0MiB", though the snapshot's own
#   active_size says that all 60 are active.
# Source: segsum() in torch/cuda/_memory_viz.py; the states of a block in the docstrings of torch/cuda/memory.py
#   (github.com/pytorch/pytorch).
# Why: the command is for finding fragmentation. With record_stream, memory that waits for another stream looks like
#   fragmentation, and its remedy is another one.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" download --quiet --no-deps --only-binary=:all: --platform macosx_14_0_arm64 --python-version 3.11 \
	--dest "$dir" torch==2.15.0
"$dir/venv/bin/python" - "$dir" <<'EOF'
import glob
import pickle
import subprocess
import sys
import zipfile

here = sys.argv[1]
(wheel,) = glob.glob(f"{here}/torch-*.whl")
with zipfile.ZipFile(wheel) as archive:
    tool = archive.extract("torch/cuda/_memory_viz.py", here)

MIB = 1 << 20
BASE = 0x7F0000000000
frames = [{"filename": "train.py", "line": 3, "name": "step"}]


def block(offset, size, state):
    return {"address": BASE + offset, "size": size, "requested_size": size, "state": state, "frames": frames}


segment = {
    "device": 0, "address": BASE, "total_size": 60 * MIB, "allocated_size": 40 * MIB, "active_size": 60 * MIB,
    "requested_size": 40 * MIB, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
    "is_expandable": False, "frames": frames,
    "blocks": [block(0, 40 * MIB, "active_allocated"), block(40 * MIB, 20 * MIB, "active_pending_free")],
}  # fmt: skip
with open(f"{here}/snapshot.pickle", "wb") as file:
    pickle.dump({"segments": [segment], "device_traces": [[]]}, file)
text = subprocess.run([sys.executable, tool, "stats", f"{here}/snapshot.pickle"], check=True, capture_output=True, text=True).stdout
(free,) = (line for line in text.splitlines() if line.startswith("total_free"))
if not free.startswith("total_free: 20.0MiB"):
    sys.exit(f"torch-stats-pending-free: changed: {free}")
print(f"torch-stats-pending-free: holds: {free} with 60.0MiB active of 60.0MiB")
EOF
