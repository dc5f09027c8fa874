# Allocates through ctypes, from several threads. At each line of its input it does some more, and
# prints what the emulated driver has live.
import ctypes, random, sys, threading

cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0


def load_weights(n):
    p = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(n)) == 0
    return p.value


def train(mine, seed):
    cuda.cuCtxSetCurrent(context)
    r = random.Random(seed)
    for _ in range(100):
        if mine and r.random() < 0.5:
            cuda.cuMemFree_v2(ctypes.c_uint64(mine.pop(r.randrange(len(mine)))))
        else:
            mine.append(load_weights(r.randrange(1, 100000)))


big = load_weights(64 << 20)
all = [[] for _ in range(4)]
for line in range(1000):
    threads = [threading.Thread(target=train, args=(mine, 10 * line + i)) for i, mine in enumerate(all)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    room = 1 << 12
    at, sizes = (ctypes.c_uint64 * room)(), (ctypes.c_uint64 * room)()
    cuda.gpuemu_live.restype = ctypes.c_size_t
    for i in range(cuda.gpuemu_live(at, sizes, ctypes.c_size_t(room))):
        print("live %x %d" % (at[i], sizes[i]))
    print("done", flush=True)
    if not sys.stdin.readline():
        sys.exit(7)
