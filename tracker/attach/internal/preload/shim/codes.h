// Copies what names the code objects of Python that are new, for package python: they may be freed
// at once.

static word word_in(const unsigned char *bytes) {
	word w;
	memcpy(&w, bytes, sizeof w);
	return w;
}

// copy_code copies a code object, and returns the size of that; 0 if nothing names it.
static size_t copy_code(struct code_copy *c, word code) {
	const struct py_layout *l = &python.layout;
	memset(c, 0, offsetof(struct code_copy, object));
	c->code = c->parts[OBJECT].at = code;
	c->version = l->version;
	c->code_address = python.inside;
	if (!copy(c->object, code, l->object_size))
		return 0;
	c->parts[OBJECT].size = l->object_size;
	c->parts[FILE_NAME].at = word_in(c->object + l->head + l->file);
	c->parts[FUNCTION_NAME].at = word_in(c->object + l->head + l->name);
	c->parts[LINES].at = word_in(c->object + l->object_size - sizeof(word));
	ssize_t file = some(c->file, c->parts[FILE_NAME].at, sizeof c->file), name = some(c->name, c->parts[FUNCTION_NAME].at, sizeof c->name);
	if (file < 0 || name < 0)
		return 0;
	c->parts[FILE_NAME].size = (word)file;
	c->parts[FUNCTION_NAME].size = (word)name;
	c->parts[RUNTIME].at = python.runtime;
	if (l->version >= 0x030d) {
		memcpy(c->runtime, (void *)python.runtime, sizeof c->runtime);
		c->parts[RUNTIME].size = sizeof c->runtime;
	}
	word lines = l->bytes + word_at(c->parts[LINES].at + l->byte_count);
	if (lines > sizeof c->lines || lines < l->bytes)
		lines = sizeof c->lines;
	if (copy(c->lines, c->parts[LINES].at, lines))
		c->parts[LINES].size = lines;
	return offsetof(struct code_copy, lines) + ((c->parts[LINES].size + 7) & ~(word)7);
}

// The code objects that the watcher has copies of, in sets of four: the newest first. Hold the
// lock.
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
