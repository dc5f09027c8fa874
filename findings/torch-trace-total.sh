#!/usr/bin/env bash
# Guess: "TOTAL MEM" at the end of PyTorch's `_memory_viz.py trace` is the memory that is allocated at the end of the trace.
# Version: torch 2.15.0 (PyPI); the file torch/cuda/_memory_viz.py of its smallest wheel, which plain Python runs.
# Behaviour: the total is kept in the loop's own counter, so it is the number of the last event, plus or minus that event's
#   bytes.
# Seen: a segment of 60 MiB, blocks of 40 and 20 MiB, and a third event that asks to free the second: "TOTAL MEM: 3.0B".
# Source: trace() in torch/cuda/_memory_viz.py (github.com/pytorch/pytorch).
# Why: it is the last line that people read of a snapshot of GPU memory printed as text, and it carries a unit.
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


def event(action, offset, size):
    return {"action": action, "addr": BASE + offset, "size": size, "stream": 0, "time_us": 1, "frames": frames}


def block(offset, size, state):
    return {"address": BASE + offset, "size": size, "requested_size": size, "state": state, "frames": frames}


segment = {
    "device": 0, "address": BASE, "total_size": 60 * MIB, "allocated_size": 40 * MIB, "active_size": 60 * MIB,
    "requested_size": 40 * MIB, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
    "is_expandable": False, "frames": frames,
    "blocks": [block(0, 40 * MIB, "active_allocated"), block(40 * MIB, 20 * MIB, "active_pending_free")],
}  # fmt: skip
trace = [
    event("segment_alloc", 0, 60 * MIB),
    event("alloc", 0, 40 * MIB),
    event("alloc", 40 * MIB, 20 * MIB),
    event("free_requested", 40 * MIB, 20 * MIB),
]
with open(f"{here}/snapshot.pickle", "wb") as file:
    pickle.dump({"segments": [segment], "device_traces": [trace]}, file)
text = subprocess.run([sys.executable, tool, "trace", f"{here}/snapshot.pickle"], check=True, capture_output=True, text=True).stdout
last = text.splitlines()[-1]
if last != "TOTAL MEM: 3.0B":
    sys.exit(f"torch-trace-total: changed: {last}")
print(f"torch-trace-total: holds: {last} with 40.0MiB allocated")
EOF
