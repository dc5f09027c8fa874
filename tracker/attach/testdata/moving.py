# Allocates where the frames of the call before were other frames: the same function at another line, another function in the same place, a generator's
# frames, 10,000 deep, and so on, in eight threads at once. Says for each allocation what its frames are, like frames.py, of the innermost 200.
import asyncio, contextlib, ctypes, os, random, sys, threading

cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
lock, told = threading.Lock(), []


def take(n=64):
    p = ctypes.c_uint64()
    frame = sys._getframe()
    assert cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(n)) == 0; text = lines(frame)
    with lock:
        told.append("%x %s" % (p.value, text))


def lines(frame):
    all = []
    while frame and len(all) < 200:
        code = frame.f_code
        all.append("%s:%d %s" % (os.path.basename(code.co_filename), frame.f_lineno, getattr(code, "co_qualname", code.co_name)))
        frame = frame.f_back
    return "|".join(all)


def other_lines():
    for _ in range(2):
        take()
        take()
    take(); take()


def one(a=1): take()
def two(a=2): take()
def three(a=3): two()


def same_place():
    one(); two(); three(); one(); two()


def gone_at_once():
    for i in range(3):
        its = {"take": take}
        exec(compile("def made%d():\n take()\n" % i, "<made in %d>" % (i // 2), "exec"), its)
        its.pop("made%d" % i)()
        eval(compile("take() or\\\n take()", "<made in %d>" % i, "eval"), {"take": take})


def numbers(n):
    for i in range(n):
        take()
        yield i


def more_numbers(n):
    yield from numbers(n)
    take()


def generators():
    a, b = numbers(3), more_numbers(3)
    for _ in range(3):
        next(a); next(b)
    list(b)


async def waits(n):
    take()
    if n:
        await asyncio.sleep(0)
        await waits(n - 1)
    take()


async def together(): await asyncio.gather(waits(3), waits(2))


@contextlib.contextmanager
def around():
    take()
    try:
        yield
    finally:
        take()


def fails(n):
    if n == 0:
        raise ValueError
    fails(n - 1)


def raised():
    with around():
        try:
            fails(5)
        except ValueError:
            take()
        finally:
            take()


def deep(n):
    if n == 0:
        take()
        return take()
    deep(n - 1)


def depths():
    for n in (5, 6, 5, 90, 40, 91):
        deep(n)


def bottomless():
    cuda.cuCtxSetCurrent(context)
    for n in (10000, 9990, 10010, 3, 10000):
        deep(n)


kept_frames = []


def kept():
    kept_frames.append(sys._getframe()) # an object stands for the frame from now on
    take()


def profiled():
    sys.setprofile(lambda *_: None)
    one(); generators()
    sys.setprofile(None)


def sorts(): sorted([3, 1, 2], key=lambda n: take() or n)


ways = [other_lines, same_place, gone_at_once, generators, lambda: asyncio.run(together()), raised, depths, kept, profiled, sorts]


def work(seed):
    cuda.cuCtxSetCurrent(context)
    r = random.Random(seed)
    for _ in range(12):
        r.choice(ways)()


sys.setrecursionlimit(20000)
threading.stack_size(256 << 20)
sys.stdin.readline()
for way in ways:
    way()
deepest = [threading.Thread(target=bottomless)]
for threads in deepest, [threading.Thread(target=work, args=(i,)) for i in range(8)]:
    for t in threads:
        t.start()
    for t in threads:
        t.join()
sys.stdout.buffer.write("\n".join(told + ["done\n"]).encode())
sys.stdout.buffer.flush()
sys.stdin.readline()
