#!/usr/bin/env bash
# Guess: parameter_size of an operator in ONNX Runtime's profile is the bytes of its weights.
# Version: onnxruntime 1.32.0, onnx 1.23.2 (PyPI), on the CPU.
# Behaviour: it is 0 for a product whose weight was pre-packed, though the packed copy is held; the same weight that is added
#   instead of multiplied counts in full.
# Seen: MatMul of a weight of 16777216 bytes: parameter_size 0; Add of one: parameter_size 16777216.
# Source: the JSON of SessionOptions.enable_profiling; onnxruntime/core/framework/sequential_executor.cc
#   (github.com/microsoft/onnxruntime).
# Why: people add up parameter_size, activation_size and output_size to see what takes the memory. The largest weights of a
#   network, those of its products, are the ones that are missing.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$dir/venv/bin/python" - "$dir" <<'EOF'
import json
import sys

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

WIDTH = 2048


def parameter_size(op):
    weight = numpy_helper.from_array(np.ones((WIDTH, WIDTH), np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [WIDTH, WIDTH]) for name in "xy")
    graph = helper.make_graph([helper.make_node(op, ["x", "w"], ["y"])], "g", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = f"{sys.argv[1]}/{op}"
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session.run(None, {"x": np.ones((WIDTH, WIDTH), np.float32)})
    with open(session.end_profiling(), encoding="utf-8") as file:
        (size,) = (e["args"]["parameter_size"] for e in json.load(file) if "parameter_size" in e.get("args", {}))
    return int(size)


product, added = parameter_size("MatMul"), parameter_size("Add")
figures = f"weight {WIDTH * WIDTH * 4}: parameter_size {product} of MatMul, {added} of Add"
if (product, added) != (0, WIDTH * WIDTH * 4):
    sys.exit(f"onnxruntime-parameter-size: changed: {figures}")
print(f"onnxruntime-parameter-size: holds: {figures}")
EOF
