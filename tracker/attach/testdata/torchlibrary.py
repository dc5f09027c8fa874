# Loads the library of a real PyTorch. At each line of input it prints the two semaphores of its static probes; before the first, a child takes
# back a block that there is not, which ends it. Arguments: the library, and where the function and the semaphores are in its file.
import ctypes, os, sys
import torch

library, release, *semaphores = sys.argv[1], *map(int, sys.argv[2:])
ctypes.CDLL(library)


def address(offset, writable):
    for line in open("/proc/self/maps"):
        fields = line.split()
        if fields[-1] == os.path.realpath(library) and ("w" in fields[1]) == writable:
            begin, end = (int(n, 16) for n in fields[0].split("-"))
            if 0 <= offset - int(fields[2], 16) < end - begin:
                return begin + offset - int(fields[2], 16)


def raised():
    sys.stdin.readline()
    return " ".join(str(ctypes.c_uint16.from_address(address(s, True)).value) for s in semaphores)


first = raised()
if os.fork() == 0:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address(release, False))(0x1000)
    os._exit(0)
os.wait()
print(first, flush=True)
print(raised(), flush=True)
