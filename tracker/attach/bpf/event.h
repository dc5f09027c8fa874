// What the kernel's programs and the preloaded library write into a ring buffer. The layout is that
// of packages event and python.
#pragma once

enum { MAX_FRAMES = 128, MAX_PYTHON = 128, ARGUMENT_COUNT = 6 }; // of a stack, of Python, and of a call

enum phase {
	CALL_ENTRY,
	CALL_RETURN,
	FORKED,        // args[0] is the new process
	EXECED,        // see report_exec
	EXITED,        // a thread; args[0] is 1 if it was the last of its process, which has lost args[5] events
	CODE_LOADED,   // of the preloaded library alone
	STACK_PART,    // see struct stack_part
	CODE_UNLOADED, // code may be unmapped from now on
	PYTHON_CODE,   // see struct code_copy
	JOINED,        // a process is watched from now on: args[0] is when its program began
};

// unwind_end says why a stack ends.
enum unwind_end {
	NOT_REPORTED, // by the preloaded library
	COMPLETE,     // at the outermost frame
	NO_CALLER,
	UNKNOWN_FUNCTION, // there is no unwind rule for the last address, so the stack was copied
	COPY_DROPPED,     // the same, but the ring buffer was too full for a copy
	TRUNCATED,        // there are more frames
	CONTINUED,        // there may be more: it is not written
};

struct record {
	uint64_t time; // ns of the monotonic clock
	uint32_t tid, pid, function, phase;
};

struct event {
	struct record head;
	uint64_t result, out, pitch, args[ARGUMENT_COUNT];
	// Of an event with a stack:
	uint64_t desc[5];
	uint8_t depth, end, total, total_end; // depth is the number of frames found by rules, total that of all
	uint32_t generation;                  // of the code of the process
	uint64_t python;                      // number of frames of Python
	uint64_t frames[2 * MAX_PYTHON + MAX_FRAMES]; // two words for each of Python, then a return address for each other
	uint64_t one_more;                            // which is not written: it shows that there are more
};

#define SHORT_SIZE offsetof(struct event, desc)

enum { MAX_PATH = 256, EXEC_SIZE = SHORT_SIZE + MAX_PATH }; // of an exec: the path of its file follows

// A stack is copied in parts: it may end within one.
enum { PART = 1 << 10, MAX_COPY = 16 << 10 };

// stack_start is the frame from which on a stack was copied.
struct stack_start {
	uint64_t sp, fp;
	uint64_t saved_return, saved_return_sp; // what a trampoline replaces, and the stack pointer after that return; 0 if there is none
};

struct stack_part {
	struct record head;
	struct stack_start start;
	uint64_t offset; // of the bytes
	uint8_t bytes[PART];
};

// code_copy is a copy of a code object of Python, with what names its function. Its layout is that
// of package python.
enum { OBJECT, FILE_NAME, FUNCTION_NAME, RUNTIME, LINES, COPY_PARTS };
enum { MOST_OBJECT = 192, MOST_FILE = 512, MOST_NAME = 256, MOST_RUNTIME = 8 * 96, MOST_LINES = 4 << 10, FEW_LINES = 512 };

struct code_copy {
	struct record head;
	uint64_t code, version, code_address;
	struct {
		uint64_t at, size;
	} parts[COPY_PARTS];
	uint8_t object[MOST_OBJECT], file[MOST_FILE], name[MOST_NAME], runtime[MOST_RUNTIME], lines[MOST_LINES];
};
