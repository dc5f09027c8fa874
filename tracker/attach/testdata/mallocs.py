# Takes and gives back host memory on one stack of so many functions of Python, and prints what N pairs took, in ns of processor time: what
# memray sees, as pychurn.py has it for device memory.
import sys, time


def deep(n, pairs):
    if n:
        return deep(n - 1, pairs)
    begin = time.process_time_ns()
    for _ in range(pairs):
        bytearray(4096)
    print("churn %d" % (time.process_time_ns() - begin))


deep(int(sys.argv[2]) - 2, int(sys.argv[1]))
