# Allocates once, below 60 frames of one function that has not run before, or of 60 functions if there is an argument.
import ctypes, sys

cuda = ctypes.CDLL("libcuda.so.1")
context, p = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
print("ready", flush=True)
sys.stdin.readline()


def layer(depth):
    return layer(depth - 1) if depth else cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(64))


def layers(depth):
    if not depth:
        return lambda: cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(64))
    its = {"below": layers(depth - 1)}
    exec(compile("def layer%d(): return below()" % depth, "<made>.py", "exec"), its)
    return its["layer%d" % depth]


layers(60)() if len(sys.argv) > 1 else layer(59)
print("done", flush=True)
sys.stdin.readline()
