# Has gdb print the callers at each call of a function, by what its argument SIZE is, after the bytes of stack down to the outermost:
# innermost first, the place in its file of each, and then the line and the name, or the library if it is in one.
#
# The program sends itself SIGURG when it has loaded its libraries.
import os
import gdb

mappings = []


def place(pc):
    """The file of an address, and where it lies in it."""
    for again in range(2):
        for begin, end, offset, path in mappings:
            if begin <= pc < end:
                return "%s+0x%x" % (os.path.basename(path), pc - begin + offset)
        mappings[:] = []
        for line in open("/proc/%d/maps" % gdb.selected_inferior().pid):
            fields = line.split(None, 5)
            begin, end = (int(n, 16) for n in fields[0].split("-"))
            mappings.append((begin, end, int(fields[2], 16), fields[5].strip() if len(fields) > 5 else "?"))
    return "?+0x0"


def caller(frame):
    if frame.type() == gdb.TAILCALL_FRAME:  # it has left the stack: gdb concludes from the code that it was there
        return None
    inlined = frame.type() == gdb.INLINE_FRAME
    at = "-" if inlined else place(frame.pc())  # the function that it is inlined in has the same place
    library = gdb.solib_name(frame.pc())
    if library:  # its debug information may lie elsewhere, and only gdb reads that
        return None if inlined else at + " " + os.path.basename(library)
    line = frame.find_sal()
    if line.symtab and line.line:
        return "%s %s:%d %s" % (at, os.path.basename(line.symtab.filename), line.line, frame.name())
    return "%s %s" % (at, frame.name() or "?")


def sp(frame):
    return int(frame.read_register("sp")) & (1 << 64) - 1


class Call(gdb.Breakpoint):
    def stop(self):
        size, frame, callers = int(gdb.parse_and_eval(os.environ["SIZE"])), gdb.selected_frame(), []
        top, bottom = sp(frame), 0
        frame = frame.older()
        while frame is not None and frame.is_valid():
            callers.append(caller(frame))
            bottom = sp(frame)
            frame = frame.older()
        out.write("%d %d %s\n" % (size, bottom - top, "|".join(c for c in callers if c)))
        return False


out = open(os.environ["CALLERS"], "w")
gdb.execute("set pagination off")
gdb.execute("set backtrace past-main on")
gdb.execute("handle SIGURG stop nopass")
gdb.execute("run")
gdb.execute("sharedlibrary")
Call(os.environ["FUNCTION"])
gdb.execute("continue")
out.close()
