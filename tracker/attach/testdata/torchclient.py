# Allocates by the stand-in of PyTorch's allocator from Python: waits for a line, allocates, prints what is live, waits for the end.
import ctypes, sys

library = ctypes.CDLL(sys.argv[1])
library.torch_empty.restype = ctypes.c_void_p
library.torch_empty.argtypes = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
library.torch_delete.argtypes = ctypes.c_void_p,


def layer(size):
    return library.torch_empty(size, 0, None)


class Model:
    def build(self):
        for size in range(512, 10000, 512):
            at = layer(size)
            if size % 1024:
                library.torch_delete(at)
            else:
                print("live %x %d" % (at or 0, size))


sys.stdin.readline()
Model().build()
print("done", flush=True)
sys.stdin.readline()
