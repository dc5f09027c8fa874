# Frees a code object and allocates in another at its address, again and again, whose names have the same length and lie where the others lay. Says
# for each allocation what its frames are, and how many addresses of code objects there were. The argument is how often; 300 without.
import ctypes, os, sys

cuda = ctypes.CDLL("libcuda.so.1")
context, p = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
sys.stdin.readline()
told, where = [], set()


def told_by(frame):
    code = frame.f_code
    where.add(id(code))
    told.append("%x %s:%d %s" % (p.value, os.path.basename(code.co_filename), frame.f_lineno, getattr(code, "co_qualname", code.co_name)))


def make(i):
    source = "def made%d():\n cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(1)); told_by(sys._getframe())\n" % i
    if i % 3 == 0:
        source = "\n" + source
    its = {"cuda": cuda, "ctypes": ctypes, "p": p, "told_by": told_by, "sys": sys}
    exec(compile(source, "<made in %d>" % (i // 2), "exec"), its)
    its.pop("made%d" % i)()


many = int(sys.argv[1]) if len(sys.argv) > 1 else 300
for i in range(10 ** len(str(many - 1)), 10 ** len(str(many - 1)) + many):
    make(i)
print("\n".join(told))
print("done", len(where), flush=True)
sys.stdin.readline()
