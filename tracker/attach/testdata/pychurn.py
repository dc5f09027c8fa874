# Allocates and frees on one stack of so many functions of Python, and prints what N pairs took, in ns of processor time, as client.c does.
import ctypes, sys, time

cuda = ctypes.CDLL("libcuda.so.1")
context, p = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0


def deep(n, pairs):
    if n:
        return deep(n - 1, pairs)
    at, size, take, free = ctypes.byref(p), ctypes.c_size_t(1), cuda.cuMemAlloc_v2, cuda.cuMemFree_v2
    begin = time.process_time_ns()
    for _ in range(pairs):
        take(at, size)
        free(p)
    print("churn %d" % (time.process_time_ns() - begin))


deep(int(sys.argv[2]) - 2, int(sys.argv[1]))
print("done", flush=True)
sys.stdin.readline()
