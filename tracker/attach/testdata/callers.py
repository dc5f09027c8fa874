# Has gdb print the callers at each call of a function: its second argument, and innermost first: the line
# and the name of each, or its library if it is in one.
import os
import gdb


def caller(frame):
    if frame.type() == gdb.TAILCALL_FRAME:  # it has left the stack: gdb concludes from the code that it was there
        return None
    library = gdb.solib_name(frame.pc())
    if library:  # its debug information may lie elsewhere, and only gdb reads that
        return os.path.basename(library) if frame.type() == gdb.NORMAL_FRAME else None
    at = frame.find_sal()
    if at.symtab and at.line:
        return "%s:%d %s" % (os.path.basename(at.symtab.filename), at.line, frame.name())
    return frame.name() or "?"


class Call(gdb.Breakpoint):
    def stop(self):
        size, frame, callers = int(gdb.parse_and_eval("$rsi")), gdb.selected_frame().older(), []
        while frame is not None and frame.is_valid():
            callers.append(caller(frame))
            frame = frame.older()
        out.write("%d %s\n" % (size, "|".join(c for c in callers if c)))
        return False


out = open(os.environ["CALLERS"], "w")
gdb.execute("set pagination off")
gdb.execute("set breakpoint pending on")
gdb.execute("set backtrace past-main on")
Call(os.environ["FUNCTION"])
gdb.execute("run < /dev/null")
out.close()
