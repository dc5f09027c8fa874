// Finds the interpreter of Python that the program has loaded, and the offsets in its structures.

// raw_layout is a row of package python's tables. Of an interpreter with debug offsets it has, in
// place of an offset, the index of the word in _PyRuntime that says it (_Py_DebugOffsets, since
// 3.13).
struct raw_layout {
	word version, frame, through, previous, code, instruction, is_index, owner, first, file, name, lines, length, ascii, wide, size, bytes;
};

static const struct raw_layout layouts[] = {
#define LAYOUT(...) {__VA_ARGS__},
	LAYOUTS
#undef LAYOUT
};

static const struct raw_layout debug_offsets[] = {
#define DEBUG_OFFSETS(version, frame, previous, code, instruction, ...) {version, frame, 0, previous, code, instruction, 0, __VA_ARGS__},
	ALL_DEBUG_OFFSETS
#undef DEBUG_OFFSETS
};

static struct {
	word (*thread)(void); // returns the address of the current thread's state; NULL if the process runs no Python that is known
	word (*first)(void);  // the first interpreter
	struct py_layout layout;
	word runtime, inside; // addresses: of _PyRuntime, and of the interpreter's code
} python;

static pthread_once_t python_once = PTHREAD_ONCE_INIT;

static word later(word a, word b) { return a > b ? a : b; }

// set_layout derives what the walk needs, and reports whether all offsets are where a walk and a
// copy look.
static int set_layout(const struct raw_layout *raw) {
	word owner_word = raw->owner == PY_NONE ? 0 : raw->owner / sizeof(word) * sizeof(word);
	word last = later(later(raw->code, raw->instruction), later(raw->previous, owner_word)), head = raw->lines + sizeof(word) - PY_HEAD_SIZE;
	word words[] = {raw->code, raw->instruction, raw->previous, raw->lines, raw->file, raw->name};
	word in_head[] = {raw->first - head, raw->file - head, raw->name - head};
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (words[i] % sizeof(word))
			return 0;
	for (size_t i = 0; i < sizeof in_head / sizeof *in_head; i++)
		if (in_head[i] > PY_HEAD_SIZE - sizeof(word))
			return 0;
	if (last > PY_MAX_PART - sizeof(word) || raw->first % sizeof(unsigned) || raw->lines < PY_HEAD_SIZE || raw->lines > MOST_OBJECT - sizeof(word))
		return 0;
	python.layout = (struct py_layout){
		.version = raw->version, .current = raw->frame, .indirect = raw->through,
		.previous = raw->previous, .code = raw->code, .instruction = raw->instruction, .is_index = raw->is_index, .owner = raw->owner,
		.frame_size = last + sizeof(word), // and no more: memory may end behind it
		.head = head, .first_line = raw->first - head, .file = raw->file - head, .name = raw->name - head, .object_size = raw->lines + sizeof(word),
		.length = raw->length, .ascii = raw->ascii, .wide = raw->wide, .byte_count = raw->size, .bytes = raw->bytes,
		.compares_text = raw->version < 0x030c,
	};
	return 1;
}

// read_debug_offsets replaces indexes by what _PyRuntime says there.
static struct raw_layout read_debug_offsets(const struct raw_layout *t, const word *runtime) {
	return (struct raw_layout){t->version, runtime[t->frame], PY_NONE, runtime[t->previous], runtime[t->code], runtime[t->instruction], 0,
		runtime[t->owner], runtime[t->first], runtime[t->file], runtime[t->name], runtime[t->lines], runtime[t->length], runtime[t->ascii], 0,
		runtime[t->size], runtime[t->bytes]};
}

// find_python looks up the interpreter that the program has loaded.
static void find_python(void) {
	const char *(*version)(void);
	word (*thread)(void);
	unsigned major, minor;
	const word *runtime = dlsym(RTLD_DEFAULT, "_PyRuntime");
	*(void **)&version = dlsym(RTLD_DEFAULT, "Py_GetVersion");
	*(void **)&thread = dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
	*(void **)&python.first = dlsym(RTLD_DEFAULT, "PyInterpreterState_Head");
	if (!runtime || !version || !thread || sscanf(version(), "%u.%u", &major, &minor) != 2)
		return;
	python.runtime = (word)runtime;
	python.inside = (word)version;
	word found = major << 8 | minor;
	for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
		if (layouts[i].version == found && set_layout(&layouts[i]))
			python.thread = thread;
	for (size_t i = 0; i < sizeof debug_offsets / sizeof *debug_offsets; i++)
		if (debug_offsets[i].version == found && !memcmp(runtime, "xdebugpy", 8) && runtime[1] >> 16 == found) {
			struct raw_layout raw = read_debug_offsets(&debug_offsets[i], runtime);
			if (set_layout(&raw))
				python.thread = thread;
		}
}
