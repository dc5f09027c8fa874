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
	word (*thread)(void); // set last; returns the address of the current thread's state; NULL if the process runs no Python that is known
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

static word searched; // objects that had been loaded when the interpreter was looked for
static int searching; // again

// copy_python_name copies the name of the first library of Python that is loaded.
static int copy_python_name(struct dl_phdr_info *info, size_t size, void *to) {
	const char *base = strrchr(info->dlpi_name, '/');
	(void)size;
	if (!base || strncmp(base, "/libpython", 10) || strlen(info->dlpi_name) >= PATH_MAX)
		return 0;
	strcpy(to, info->dlpi_name);
	return 1;
}

// find_interpreter returns in what the functions of the interpreter are looked up. RTLD_DEFAULT does not
// find what is loaded with RTLD_LOCAL. The library stays loaded from now on: calls lead to it.
static void *find_interpreter(void) {
	char name[PATH_MAX];
	void *library = dl_iterate_phdr(copy_python_name, name) ? dlopen(name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
	return dlsym(RTLD_DEFAULT, "_PyRuntime") ? RTLD_DEFAULT : library;
}

// find_python looks up the interpreter that the program has loaded.
static void find_python(void) {
	__atomic_store_n(&searched, code_at(0).loads, __ATOMIC_RELAXED);
	const char *(*version)(void);
	word (*thread)(void), (*known)(void) = NULL;
	unsigned major, minor;
	void *in = find_interpreter();
	const word *runtime = dlsym(in, "_PyRuntime");
	*(void **)&version = dlsym(in, "Py_GetVersion");
	*(void **)&thread = dlsym(in, "PyGILState_GetThisThreadState");
	*(void **)&python.first = dlsym(in, "PyInterpreterState_Head");
	if (!runtime || !version || !thread || sscanf(version(), "%u.%u", &major, &minor) != 2)
		return;
	python.runtime = (word)runtime;
	python.inside = (word)version;
	word found = major << 8 | minor;
	for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
		if (layouts[i].version == found && set_layout(&layouts[i]))
			known = thread;
	for (size_t i = 0; i < sizeof debug_offsets / sizeof *debug_offsets; i++)
		if (debug_offsets[i].version == found && !memcmp(runtime, "xdebugpy", 8) && runtime[1] >> 16 == found) {
			struct raw_layout raw = read_debug_offsets(&debug_offsets[i], runtime);
			if (set_layout(&raw))
				known = thread;
		}
	__atomic_store_n(&python.thread, known, __ATOMIC_RELEASE);
}

// current_thread returns the address of the state of the current thread of Python; 0 if there is none.
// The first call waits for the search of another thread. A program may load Python later: if it has
// loaded objects since the last search, another thread that searches is not waited for.
static word current_thread(word objects) {
	pthread_once(&python_once, find_python);
	word (*thread)(void) = __atomic_load_n(&python.thread, __ATOMIC_ACQUIRE);
	if (!thread && objects != __atomic_load_n(&searched, __ATOMIC_RELAXED) && !__atomic_exchange_n(&searching, 1, __ATOMIC_ACQUIRE)) {
		find_python();
		thread = python.thread;
		__atomic_store_n(&searching, 0, __ATOMIC_RELEASE);
	}
	return thread ? thread() : 0;
}
