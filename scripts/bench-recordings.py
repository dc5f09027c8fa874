"""The runs of scripts/bench-recordings: WORK FOLDER ROUNDS ONLY. With the word peer and files: the program that they are beside."""

import os
import pickle
import statistics
import subprocess
import sys
import time


def walk(paths):
    """Reads snapshots and adds up what a table of live memory is made of."""
    for path in paths:
        with open(path, "rb") as f:
            snapshot = pickle.load(f)
        level = peak = frames = 0
        for trace in snapshot["device_traces"]:
            for event in trace:
                frames += len(event["frames"])
                if event["action"] == "alloc":
                    level += event["size"]
                    peak = max(peak, level)
                elif event["action"] == "free_completed":
                    level -= event["size"]
        lines = {}
        for segment in snapshot["segments"]:
            for block in segment["blocks"]:
                if block["state"] == "active_allocated" and block["frames"]:
                    f = block["frames"][0]
                    key = (f["filename"], f["line"])
                    lines[key] = lines.get(key, 0) + block["size"]


def run(command, **environment):
    """Runs a command; returns seconds of processor time and by the clock, and MiB."""
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **environment})
    _, status, used = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit(f"{command}: status {status}")
    return used.ru_utime + used.ru_stime, time.monotonic() - start, used.ru_maxrss / 1024


def main(work, folder, rounds, only):
    tool = os.path.join(work, "gpumemtrack")

    def recording(name, *flags):
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            subprocess.check_call([os.path.join(work, "bigrecording"), *flags, path + ".part"])
            os.rename(path + ".part", path)
        return path

    def ranks():
        path = os.path.join(folder, "ranks")
        os.makedirs(path, exist_ok=True)
        for i in range(2000):
            recording(f"ranks/rank{i:04}.pickle", "-events=750", "-stacks=50", "-live=200", f"-seed={i + 1}")
        return path

    def converted(ending):
        path = os.path.join(folder, "million" + ending)
        if not os.path.exists(path):
            subprocess.check_call([tool, "convert", million(), "-o", path], stdout=subprocess.DEVNULL)
        return path

    def million():
        return recording("million.pickle")

    rows = [
        ("a million events", million, True),
        ("the same, 330,000 call stacks", lambda: recording("stacks.pickle", "-stacks=330000"), True),
        ("five million events, 72 frames", lambda: recording("long.pickle", "-events=5000000", "-depth=72"), False),
        ("2,000 files of ranks", ranks, True),
        ("a million events, as JSON", lambda: converted(".json"), False),
        ("a million events, as pprof", lambda: converted(".pb.gz"), False),
    ]
    print("medians; beside pickle.load of Python " + sys.version.split()[0] + " and a plain walk where the ratio has a number")
    print(f"{'':32} {'processor':>10} {'clock':>8} {'one core':>9} {'memory':>10} | {'Python':>8} {'memory':>10} | ratio")
    for name, make, beside in rows:
        if only not in name:
            continue
        path = make()
        files = [os.path.join(path, f) for f in sorted(os.listdir(path))] if os.path.isdir(path) else [path]
        ours, single, peers = [], [], []
        for _ in range(rounds):
            ours.append(run([tool, "show", path]))
            single.append(run([tool, "show", path], GOMAXPROCS="1"))
            if beside:
                peers.append(run([sys.executable, __file__, "peer", *files]))
        cpu, clock, memory = (statistics.median(x) for x in zip(*ours))
        line = f"{name:32} {cpu:8.2f} s {clock:6.2f} s {statistics.median(x[1] for x in single):7.2f} s {memory:6.0f} MiB"
        if beside:
            peer, _, its = (statistics.median(x) for x in zip(*peers))
            line += f" | {peer:6.2f} s {its:6.0f} MiB | {cpu / peer:.2f}"
        print(line, flush=True)


if sys.argv[1] == "peer":
    walk(sys.argv[2:])
else:
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
