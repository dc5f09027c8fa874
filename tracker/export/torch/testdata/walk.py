"""Walks through a memory snapshot of PyTorch, event by event, and prints JSON.

python3 walk.py FILE

For each device: live bytes as they were requested, their peak, and reserved bytes.
The state before the first event is that at the end with every event undone. A buffer lives
from its alloc to its free_completed. The level series are given as a hash of one
line "live reserved" for the beginning and for each event. freed_at is the number of
frees whose stack is not that of the allocation.
"""
import gzip
import hashlib
import json
import pickle
import sys


def open_snapshot(path):
    with open(path, "rb") as f:
        data = f.read()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return pickle.loads(data)


def requested(block):
    if "requested_size" in block:
        return block["requested_size"]
    return block["history"][0]["real_size"] if block.get("history") else block["size"]


def step(e):
    """What an event adds to live and reserved bytes; None if it is no event of memory."""
    size = e.get("size", 0)
    return {
        "alloc": (size, 0), "free_completed": (-size, 0),
        "segment_alloc": (0, size), "segment_map": (0, size), "segment_free": (0, -size), "segment_unmap": (0, -size),
    }.get(e["action"])


def freed_at(events):
    count, stacks = 0, {}
    for e in events:
        if e["action"] == "alloc":
            stacks[e["addr"]] = e["frames"]
        elif e["action"] == "free_completed" and e["addr"] in stacks:
            count += e["frames"] not in ([], stacks.pop(e["addr"]))
    return count


def walk(segments, events):
    live = reserved = count = 0
    for s in segments:
        reserved += s["total_size"]
        for b in s["blocks"]:
            if b["state"].startswith("active"):
                live += requested(b)
                count += 1
    end = {"live": live, "reserved": reserved, "count": count}
    steps = [d for d in map(step, events) if d]
    live -= sum(d[0] for d in steps)
    reserved -= sum(d[1] for d in steps)
    out = {"events": len(steps), "first_live": live, "first_reserved": reserved}
    series = hashlib.sha256(f"{live} {reserved}\n".encode())
    peak, peak_reserved = live, reserved
    for d in steps:
        live += d[0]
        reserved += d[1]
        series.update(f"{live} {reserved}\n".encode())
        peak, peak_reserved = max(peak, live), max(peak_reserved, reserved)
    out.update(end, freed_at=freed_at(events), peak=peak, peak_reserved=peak_reserved, series=series.hexdigest()[:16])
    return out


snapshot = open_snapshot(sys.argv[1])
traces = snapshot["device_traces"]
devices = {s["device"] for s in snapshot["segments"]} | {i for i, t in enumerate(traces) if t}
json.dump({
    str(d): walk([s for s in snapshot["segments"] if s["device"] == d], traces[d] if d < len(traces) else [])
    for d in sorted(devices)
}, sys.stdout, indent=1)
