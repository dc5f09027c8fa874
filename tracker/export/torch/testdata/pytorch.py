"""Writes snapshots shaped as torch.cuda.memory._dump_snapshot of PyTorch 2.9 does.

python3 pytorch.py FILE PROTOCOL, where the protocol is 0 to 5, or json
"""
import json
import pickle
import sys

at = lambda name, filename, line: {"name": name, "filename": filename, "line": line}
frames = [
    at("c10::cuda::Allocator::malloc", "??", 0),
    at("forward", "/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py", 125),
    at("train_step", "/home/user/train.py", 42),
    at("main", "/home/user/train.py", 80),
]
base = 0x7F1000000000
snapshot = {
    "segments": [
        {
            "device": 0, "address": base, "total_size": 20 << 20, "allocated_size": 9 << 20,
            "active_size": 9 << 20, "requested_size": (9 << 20) - 100, "stream": 0,
            "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "frames": frames,
            "blocks": [
                {"address": base, "size": 8 << 20, "requested_size": (8 << 20) - 100, "state": "active_allocated", "frames": frames},
                {"address": base + (8 << 20), "size": 1 << 20, "requested_size": 1 << 20, "state": "active_allocated", "frames": frames},
                {"address": base + (9 << 20), "size": 11 << 20, "requested_size": 0, "state": "inactive", "frames": []},
            ],
        },
        {
            "device": 1, "address": base, "total_size": 5 << 30, "allocated_size": 5 << 30,
            "active_size": 5 << 30, "requested_size": 5 << 30, "stream": 0,
            "segment_type": "large", "segment_pool_id": (0, 1), "is_expandable": True,
            "blocks": [{"size": 5 << 30, "state": "active_allocated", "history": [{"addr": base, "frames": frames[1:], "real_size": (5 << 30) - 8}]}],
        },
    ],
    "device_traces": [
        [
            {"action": "segment_alloc", "addr": base, "size": 20 << 20, "stream": 0, "time_us": 1780000000000000, "frames": frames},
            {"action": "alloc", "addr": base, "size": (8 << 20) - 100, "stream": 0, "time_us": 1780000000000001, "frames": frames, "category": "optimizer_state", "user_metadata": {"step": 1.5}},
            {"action": "alloc", "addr": base + (8 << 20), "size": 1 << 20, "stream": 0, "time_us": 1780000000000002, "frames": frames, "category": "autograd_detail"},
            {"action": "oom", "device_free": 1 << 33, "size": 1 << 40, "stream": 0, "time_us": 1780000000000003, "frames": frames},
        ],
        [],
    ],
    "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False, "garbage_collection_threshold": 0.0},
    "external_annotations": [],
}
with open(sys.argv[1], "wb") as file:
    if sys.argv[2] == "json":
        file.write(json.dumps(snapshot).encode())
    else:
        pickle.dump(snapshot, file, protocol=int(sys.argv[2]))
