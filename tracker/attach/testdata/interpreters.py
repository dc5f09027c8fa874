# Allocates in several interpreters. It says for each allocation what Python's own frames are, and waits for an answer: the address, how
# many interpreters there are, and a line for each frame.
import os, sys, threading

for name in ("_interpreters", "_xxsubinterpreters"):
    try:
        interpreters = __import__(name)
        break
    except ImportError:
        pass
else:
    sys.exit("there is no such module")

text = """
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")


def take(n, interpreters):
    p = ctypes.c_uint64()
    frame = sys._getframe()
    assert cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(n)) == 0; told = lines(frame)
    os.write(1, ("%x %d %s\\n" % (p.value, interpreters, told)).encode())
    os.read(0, 1)


def lines(frame):
    all = []
    while frame:
        code = frame.f_code
        all.append("%s:%d %s" % (os.path.basename(code.co_filename), frame.f_lineno, getattr(code, "co_qualname", code.co_name)))
        frame = frame.f_back
    return "|".join(all)
"""
exec(text)
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
ready, go = os.pipe(), os.pipe()
inner = text + """
def layer(n): take(n, 2)
cuda.cuCtxSetCurrent(ctypes.c_void_p(%d))
layer(7)
os.write(%d, b"x")
os.read(%d, 1)
""" % (context.value, ready[1], go[0])


def run(id):
    execute = getattr(interpreters, "run_string", None) or interpreters.exec
    failed = execute(id, inner)
    if failed:
        sys.exit(str(failed))


def make(*args, **kw):
    try:
        return interpreters.create(*args, **kw)
    except (TypeError, ValueError):
        return None


sys.stdin.readline()
take(1, 1)
shared = make("legacy") or make(isolated=False) or make()
alone = make("isolated") if sys.version_info >= (3, 13) else None
for id in filter(None, (shared, alone)):
    os.write(go[1], b"x")
    run(id)
    os.read(ready[0], 1)
    take(2, 2)
    thread = threading.Thread(target=run, args=(id,))
    thread.start()
    os.read(ready[0], 1)
    take(3, 2)
    os.write(go[1], b"x")
    thread.join()
take(4, 2)
os.write(1, b"done\n")
sys.stdin.readline()
os._exit(0)
