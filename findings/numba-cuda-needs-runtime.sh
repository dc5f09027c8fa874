#!/usr/bin/env bash
# Guess: numba-cuda installed by its plain name needs the driver alone; where nothing is installed from CUDA,
#   cuda.is_available() answers False.
# Version: numba-cuda 0.30.4, numba 0.68.1, cuda-bindings 13.5.0, cuda-core 1.2.2, cuda-pathfinder 1.9.1 (PyPI).
# Behaviour: the import of numba.cuda itself fails without libcudart, before any question can be asked; no package that pip
#   installed brings it.
# Seen: DynamicLibNotFoundError: Failure finding "libcudart.so.13 or libcudart.so.12".
# Source: the wheel's METADATA: the CUDA toolkit is in the extras cu12 and cu13 alone.
# Why: tools that measure optionally ask numba whether there is a GPU and catch ImportError. This is another error, from an
#   installation that pip calls complete.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet numba-cuda==0.30.4 numba==0.68.1 cuda-bindings==13.5.0 cuda-core==1.2.2 \
	cuda-pathfinder==1.9.1 numpy==2.4.6
"$dir/venv/bin/python" - <<'EOF'
import sys

from cuda.pathfinder import load_nvidia_dynamic_lib

try:
    found = load_nvidia_dynamic_lib("cudart").abs_path
except Exception:
    found = None
if found:
    print(f"numba-cuda-needs-runtime: skipped: this machine has {found}")
    sys.exit(0)
try:
    from numba import cuda

    sys.exit(f"numba-cuda-needs-runtime: changed: is_available() is {cuda.is_available()}")
except Exception as error:
    said = f"{type(error).__name__}: {str(error).split(': No such')[0]}"
    if isinstance(error, ImportError) or "libcudart" not in said:
        sys.exit(f"numba-cuda-needs-runtime: changed: {said}")
    print(f"numba-cuda-needs-runtime: holds: {said}")
EOF
