// Copies what names the code objects of Python that are new, for package python: they may be freed at once.

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

// copy_code copies a code object, and returns the size of that; 0 if nothing names it.
static size_t copy_code(copied *c, word code) {
	const struct py_layout *l = &python.layout;
	memset(c, 0, offsetof(copied, object));
	c->code = c->object_is.at = code;
	c->version = l->version;
	c->inside = python.inside;
	if (!copy(c->object, code, l->object_size))
		return 0;
	c->object_is.size = l->object_size;
	c->file_is.at = word_in(c->object + l->head + l->file);
	c->name_is.at = word_in(c->object + l->head + l->name);
	c->lines_is.at = word_in(c->object + l->object_size - sizeof(word));
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
	word lines = l->bytes + word_at(c->lines_is.at + l->byte_count);
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
