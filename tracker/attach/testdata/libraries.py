# Allocates by a library of Python, and says for each call of the driver what Python's own frames are: the address, and a line for each frame.
import os, sys, threading

told = []


def tells(call, address):
    # The call of the driver in the place of the library's own: it tells of its callers and itself.
    def allocate(*args):
        frame = sys._getframe()
        got = call(*args); text = lines(frame)
        told.append("%x %s" % (address(got, *args), text))
        return got
    return allocate


def lines(frame):
    all = []
    while frame:
        code = frame.f_code
        all.append("%s:%d %s" % (os.path.basename(code.co_filename), frame.f_lineno, getattr(code, "co_qualname", code.co_name)))
        frame = frame.f_back
    return "|".join(all)


def bindings():
    from cuda.bindings import driver
    checked = lambda got: got[1] if len(got) > 1 else None
    driver.cuInit(0)
    context = checked(driver.cuDevicePrimaryCtxRetain(0))
    driver.cuMemAlloc = tells(driver.cuMemAlloc, lambda got, *args: int(got[1]))
    def allocate(n):
        driver.cuCtxSetCurrent(context)
        return checked(driver.cuMemAlloc(n))
    return allocate, driver.cuMemFree


def numba():
    import numpy
    from numba import cuda
    from numba.cuda.cudadrv import driver
    cuda.current_context()
    driver.driver.cuMemAlloc = tells(driver.driver.cuMemAlloc, lambda got, *args: int(got))
    return lambda n: cuda.device_array(n, dtype=numpy.uint8), lambda array: None


def tinygrad():
    os.environ["CUDA"] = "1"
    from tinygrad import dtypes
    from tinygrad.device import Buffer
    from tinygrad.runtime import ops_cuda
    Buffer("CUDA", 1, dtypes.uint8).allocate()
    ops_cuda.cuda.cuMemAlloc_v2 = tells(ops_cuda.cuda.cuMemAlloc_v2, lambda got, to, size: to._obj.value)
    return lambda n: Buffer("CUDA", n, dtypes.uint8).allocate(), lambda buffer: buffer.deallocate()


def layer(n): return allocate(n)


def model(count): return [layer((i + 1) << 16) for i in range(count)]


def scratch():
    for i in range(20):
        yield layer(1 << 20)


allocate, free = {"bindings": bindings, "numba": numba, "tinygrad": tinygrad}[sys.argv[1]]()
sys.stdin.readline()
kept = model(20)
for i, buffer in enumerate(scratch()):
    kept.append(buffer)
threads = [threading.Thread(target=lambda: kept.extend(model(10))) for _ in range(3)]
for t in threads:
    t.start()
for t in threads:
    t.join()
sys.stdout.write("\n".join(told + ["done\n"]))
sys.stdout.flush()
sys.stdin.readline()
os._exit(0)
