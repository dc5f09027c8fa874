// Reads the frames of Python's interpreter, and copies what its code objects say of themselves when they are new, for package python: they may
// be freed at once. The kernel reads all that, in case it is not what it should be.

// An interpreter, by its version: offsets as in package python, NONE of what there is not.
typedef struct {
	unsigned version;
	word frame, through, previous, code, instruction, is_index, owner, first;
	word file, name, lines, length, ascii, wide, size, bytes; // of names
} layout;

#define NONE (~(word)0)

static const layout layouts[] = {
#define LAYOUT(...) {__VA_ARGS__},
	LAYOUTS
#undef LAYOUT
};

// Since 3.13 an interpreter has debug offsets (_Py_DebugOffsets). These are the indexes of their words.
typedef struct {
	unsigned version, frame, previous, code, instruction, owner, first, file, name, lines, length, ascii, wide, size, bytes;
} debug_offsets;

static const debug_offsets debug_offset_table[] = {
#define DEBUG_OFFSETS(...) {__VA_ARGS__},
	ALL_DEBUG_OFFSETS
#undef DEBUG_OFFSETS
};

enum { MOST = 128, HEAD_OF_CODE = 88 }; // that a part of a frame may have; up to the pointer to the lines: all that does not change

static struct {
	word (*thread)(void); // the thread's state; NULL if the process runs no Python that is known
	word (*first)(void);  // the first interpreter
	layout its;
	size_t size; // of the part of a frame that is read, and no more: memory may end behind it; 0 if the layout is not known
	word head;   // of a code object: where what tells it from others begins
	word runtime, inside; // addresses: of what it tells, and of its code
} python;

// A copy of a code object, as in package python.
typedef struct {
	word time;
	uint32_t tid, pid, function, phase;
	word code, version, inside;
	struct {
		word at, size;
	} object_is, file_is, name_is, runtime_is, lines_is;
	unsigned char object[MOST_OBJECT], file[MOST_FILE], name[MOST_NAME], runtime[MOST_RUNTIME], lines[MOST_LINES];
} copied;

static word word_in(const unsigned char *bytes) {
	word w;
	memcpy(&w, bytes, sizeof w);
	return w;
}

static pthread_once_t python_once = PTHREAD_ONCE_INIT;

static ssize_t some(void *to, word from, size_t n) {
	struct iovec here = {to, n}, there = {(void *)from, n};
	return process_vm_readv(getpid(), &here, 1, &there, 1, 0);
}

static int copy(void *to, word from, size_t n) { return some(to, from, n) == (ssize_t)n; }

static word word_at(word address) {
	word w = 0;
	return copy(&w, address, sizeof w) ? w : 0;
}

// is_ordered reports whether a layout's offsets are within what is read.
static int is_ordered(const layout *l) {
	word head = l->lines + sizeof(word) - HEAD_OF_CODE, in[] = {l->first, l->file, l->name};
	for (size_t i = 0; i < sizeof in / sizeof *in; i++)
		if (in[i] - head > HEAD_OF_CODE - sizeof(word))
			return 0;
	return l->lines >= HEAD_OF_CODE && l->lines + sizeof(word) <= MOST_OBJECT;
}

// find_python looks up the interpreter that the program has loaded.
static void find_python(void) {
	const char *(*version)(void);
	word (*thread)(void);
	unsigned major, minor;
	word *debug = dlsym(RTLD_DEFAULT, "_PyRuntime");
	*(void **)&version = dlsym(RTLD_DEFAULT, "Py_GetVersion");
	*(void **)&thread = dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
	*(void **)&python.first = dlsym(RTLD_DEFAULT, "PyInterpreterState_Head");
	if (!debug || !version || !thread || sscanf(version(), "%u.%u", &major, &minor) != 2)
		return;
	python.runtime = (word)debug;
	python.inside = (word)version;
	for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
		if (layouts[i].version == (major << 8 | minor)) {
			python.its = layouts[i];
			python.thread = thread;
		}
	for (size_t i = 0; i < sizeof debug_offset_table / sizeof *debug_offset_table; i++)
		if (debug_offset_table[i].version == (major << 8 | minor) && debug[1] >> 16 == debug_offset_table[i].version && !memcmp(debug, "xdebugpy", 8)) {
			const debug_offsets *t = &debug_offset_table[i];
			python.its = (layout){t->version, debug[t->frame], NONE, debug[t->previous], debug[t->code], debug[t->instruction], 0, debug[t->owner], debug[t->first],
				debug[t->file], debug[t->name], debug[t->lines], debug[t->length], debug[t->ascii], 0, debug[t->size], debug[t->bytes]};
			python.thread = thread;
		}
	const layout *l = &python.its;
	word ends[] = {l->code, l->instruction, l->previous, l->owner == NONE ? 0 : l->owner + 1 - sizeof(word)}, size = 0;
	for (size_t i = 0; python.thread && i < sizeof ends / sizeof *ends; i++) {
		if (ends[i] > MOST - sizeof(word))
			return; // what it told is not so
		if (size < ends[i] + sizeof(word))
			size = ends[i] + sizeof(word);
	}
	python.head = l->lines + sizeof(word) - HEAD_OF_CODE;
	python.size = is_ordered(l) ? size : 0;
}

// is_certain is 0 if the state that python.thread returns may not be that which runs: before 3.12, where there are several
// interpreters. Each begins with the address of the next.
static int is_certain(void) {
	word at = python.its.version < 0x030c && python.first ? python.first() : 0;
	return !at || !word_at(at);
}

enum { TAGS = 15, OWNER = 7, NOT_COPIED = 8, OWNED_BY_C = 3 };

#define NO_CODE NONE // the print of a frame without code

static word mixed(word print, const unsigned char *from, size_t n) {
	for (; n >= sizeof(word); from += sizeof(word), n -= sizeof(word)) {
		print = (print ^ word_in(from)) * 0x9e3779b97f4a7c15;
		print ^= print >> 29;
	}
	while (n--)
		print = (print ^ *from++) * 0x9e3779b97f4a7c15;
	return print;
}

// print_of tells a code object, by its head, from others at the same address, before and after; it is 0 where that is not known. Since 3.12
// each has a number of its own. Before, the text of its names tells.
static word print_of(const unsigned char *head) {
	enum { LENGTH = 16, STATE = 32, ASCII = 48, WIDE = 72 };
	const layout *l = &python.its;
	word print = mixed(1, head, HEAD_OF_CODE);
	if (l->version < 0x030c) {
		unsigned char text[2][WIDE + 192];
		struct iovec here = {text, sizeof text}, there[2] = {
			{(void *)word_in(head + l->file - python.head), sizeof *text},
			{(void *)word_in(head + l->name - python.head), sizeof *text}};
		if (process_vm_readv(getpid(), &here, 1, there, 2, 0) != sizeof text)
			return 0;
		for (int i = 0; i < 2; i++) {
			word length = word_in(text[i] + LENGTH), state = word_in(text[i] + STATE);
			size_t at = state >> 6 & 1 ? ASCII : WIDE, size = state >> 6 & 1 ? 1 : state >> 2 & 7;
			if (length > 192 || length * size > sizeof *text - at)
				return 0;
			print = mixed(mixed(print, (unsigned char *)&length, sizeof length), text[i] + at, length * size);
		}
	}
	return print && print != NO_CODE ? print : 1;
}

// python_frames takes the frames of the interpreter that this thread is in; they stay as they are until the call returns. Two words for each
// are what package python decodes.
static int python_frames(word *to, word *prints) {
	pthread_once(&python_once, find_python);
	const layout *l = &python.its;
	unsigned char frame[MOST] = {0}, head[HEAD_OF_CODE];
	int n = 0, before_reads = errno;
	word at = python.size && is_certain() ? python.thread() : 0;
	if (at)
		at = word_at(at + l->frame);
	if (at && l->through != NONE)
		at = word_at(at + l->through);
	int is_there = at && copy(frame, at, python.size);
	for (; at && n < PYTHON_FRAMES; n++) {
		word code = 0, where = 0, tag = 0, next = 0, print = NO_CODE;
		uint32_t first = 0;
		if (is_there) {
			code = word_in(frame + l->code) & ~(word)TAGS;
			where = word_in(frame + l->instruction) - (l->is_index ? 0 : code);
			tag = l->owner == NONE ? 0 : frame[l->owner] & OWNER;
			next = word_in(frame + l->previous);
			// The code object, and the caller's frame: each read by itself would take as long as both.
			struct iovec here[2] = {{head, sizeof head}, {frame, python.size}}, there[2] = {{(void *)(code + python.head), sizeof head}, {(void *)next, python.size}};
			ssize_t got = process_vm_readv(getpid(), here, 2, there, next ? 2 : 1, 0);
			is_there = got == (ssize_t)(sizeof head + python.size);
			if (next && !is_there && got < (ssize_t)sizeof head)
				is_there = copy(frame, next, python.size);
			if (got >= (ssize_t)sizeof head && tag < OWNED_BY_C) {
				memcpy(&first, head + l->first - python.head, sizeof first);
				print = print_of(head);
			}
		} // else one without code: the stack says that a function could not be read
		*to++ = code | tag;
		*to++ = where << 32 | first;
		*prints++ = print;
		at = next;
	}
	errno = before_reads;
	return n;
}

// copy_code copies a code object, and returns the size of that; 0 if nothing names it.
static size_t copy_code(copied *c, word code) {
	const layout *l = &python.its;
	memset(c, 0, offsetof(copied, object));
	c->code = c->object_is.at = code;
	c->version = l->version;
	c->inside = python.inside;
	if (!copy(c->object, code, l->lines + sizeof(word)))
		return 0;
	c->object_is.size = l->lines + sizeof(word);
	c->file_is.at = word_in(c->object + l->file);
	c->name_is.at = word_in(c->object + l->name);
	c->lines_is.at = word_in(c->object + l->lines);
	ssize_t file = some(c->file, c->file_is.at, sizeof c->file), name = some(c->name, c->name_is.at, sizeof c->name);
	if (file < 0 || name < 0)
		return 0;
	c->file_is.size = (word)file;
	c->name_is.size = (word)name;
	c->runtime_is.at = python.runtime;
	if (l->version >= 0x030d) {
		memcpy(c->runtime, (void *)python.runtime, sizeof c->runtime);
		c->runtime_is.size = sizeof c->runtime;
	}
	word lines = l->bytes + word_at(c->lines_is.at + l->size);
	if (lines > sizeof c->lines || lines < l->bytes)
		lines = sizeof c->lines;
	if (copy(c->lines, c->lines_is.at, lines))
		c->lines_is.size = lines;
	return offsetof(copied, lines) + ((c->lines_is.size + 7) & ~(word)7);
}

// The code objects that the watcher has copies of, in sets of four: the newest first. Hold the lock.
static struct known_code {
	word code, print;
} known_codes[1024][4];

static struct known_code *set_of(word code) { return known_codes[code * 0x9e3779b97f4a7c15 >> 54]; }

static int is_known(word code, word print) {
	struct known_code *k = set_of(code);
	for (int i = 0; i < 4; i++)
		if (k[i].code == code)
			return print && k[i].print == print;
	return 0;
}

static void keep_known(word code, word print) {
	struct known_code *k = set_of(code);
	int i = 0;
	while (i < 3 && k[i].code != code)
		i++;
	memmove(k + 1, k, (size_t)i * sizeof *k);
	k[0] = (struct known_code){code, print};
}
