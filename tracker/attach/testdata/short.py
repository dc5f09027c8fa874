# Waits for a line, then allocates in code that is freed at once, and ends. With "exit" it ends without a farewell.
import ctypes, os, sys

cuda = ctypes.CDLL("libcuda.so.1")
context, p = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
sys.stdin.readline()
exec(compile("def once():\n  cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(1))\nonce()\n", "<made>", "exec")); globals().pop("once")
cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(2))
if sys.argv[1] == "exit":
    os._exit(0)
