#!/usr/bin/env bash
# Guess: an arena of ONNX Runtime with a limit of 8 MiB never holds more: a weight of 16 MiB in it is refused.
# Version: onnxruntime 1.32.0, onnx 1.23.2 (PyPI), the CPU's arena, shared by create_and_register_allocator.
# Behaviour: pre-packed weights are reserved without a look at the limit. Once they are above it, the limit stops nothing
#   at all: what is left of it wraps around below zero. The same model with pre-packing off is refused.
# Seen: "memory limit: 8388608" and "Total allocated bytes: 33562624" of one arena; with session.disable_prepacking=1
#   "Available memory of 8380416 is smaller than requested bytes of 16777216".
# Source: onnxruntime/core/framework/bfc_arena.cc, Reserve and Extend (github.com/microsoft/onnxruntime).
# Why: gpu_mem_limit and max_mem are how people share a GPU between sessions. The same arena class serves CUDA; the limit in
#   a log is no bound of the total that follows.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
cat >"$dir/run.py" <<'EOF'
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

WIDTH = 2048
weight = numpy_helper.from_array(np.ones((WIDTH, WIDTH), np.float32), "w")
x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDTH])
y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", WIDTH])
graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

ort.set_default_logger_severity(1)
memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
arena = ort.OrtArenaCfg({"max_mem": 8 << 20, "arena_extend_strategy": 1})
ort.create_and_register_allocator(memory, arena)
options = ort.SessionOptions()
options.add_session_config_entry("session.use_env_allocators", "1")
options.add_session_config_entry("session.disable_prepacking", sys.argv[1])
try:
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for rows in 1, WIDTH:
        session.run(None, {"x": np.ones((rows, WIDTH), np.float32)})
    print("ran")
except Exception as error:
    print(str(error).split("Status Message: ")[-1].split("*) ")[-1])
EOF
packed=$("$dir/venv/bin/python" "$dir/run.py" 0 2>"$dir/log")
plain=$("$dir/venv/bin/python" "$dir/run.py" 1 2>/dev/null)
total=$(sed -n 's/.*Total allocated bytes: \([0-9]*\).*/\1/p' "$dir/log" | tail -n 1)
figures="limit 8388608, total ${total:-unknown} ($packed); without pre-packing: $plain"
case "$packed $plain" in
"ran Available memory of "*) ;;
*)
	echo "onnxruntime-limit-passed: changed: $figures"
	exit 1
	;;
esac
if [ "${total:-0}" -le 8388608 ]; then
	echo "onnxruntime-limit-passed: changed: $figures"
	exit 1
fi
echo "onnxruntime-limit-passed: holds: $figures"
