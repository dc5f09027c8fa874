//go:build ignore

// Copies the code objects of Python that are new. A code object may be freed as soon as its thread
// continues, and another may get its address. So what names a function is copied while the thread
// is stopped, into the ring buffer before the event. It is copied once: a map has the known code
// objects with what distinguishes each from another at the same address. The map is updated after
// the copy, so that no event of another thread comes before it. A frame whose code object is
// unknown, and could not be copied, has PY_NOT_COPIED, and what the reader recognizes the code object
// by: another may be at its address when it is read. If there is nothing to recognize it by, the
// frame has no address.

// interpreter is where the interpreter of a process has its threads, and its layout.
struct interpreter {
	word first, next;             // the address of the pointer to the first interpreter, and the offset of that to the next
	word threads, next_thread;    // offsets in an interpreter and in a thread
	word status;                  // of a thread; PY_NONE before 3.12
	word thread_id, thread_size;  // of a thread, and the bytes that have all that
	word stacked;                 // frames lie behind those of their callers
	word program;                 // identifies the program that the process runs
	struct py_layout layout;
};

struct code_key {
	word program, code;
};

// known_code distinguishes a code object from others at its address.
struct known_code {
	word digest; // of the head, which has a unique version number since 3.12
	// Before 3.12: the text of the file's name and of the function's, and the digest of both.
	struct {
		word at, size;
	} texts[2];
	word text_digest;
};

MAP(interpreters, HASH, MAX_PROCESSES, uint32_t, struct interpreter); // by process
MAP(known_codes, LRU_HASH, 1 << 14, struct code_key, struct known_code);

static INLINE word mix(word digest, word w) { return (digest ^ w) * 0x9e3779b97f4a7c15; }

enum { STRING_HEAD = 40 }; // of a string before 3.12: its length, and the width of its characters

// digest_texts digests both texts of a code object, and reports whether they could be read.
static INLINE int digest_texts(struct scratch *s, const struct known_code *k, word *digest)
{
	word file = k->texts[0].size, name = k->texts[1].size;
	asm volatile("" : "+r"(file));
	asm volatile("" : "+r"(name));
	if (file > MAX_FILE || bpf_probe_read_user(s->texts, file, (void *)k->texts[0].at))
		return 0;
	if (name > MAX_NAME || bpf_probe_read_user(s->texts + MAX_FILE, name, (void *)k->texts[1].at))
		return 0;
	*digest = mix(0, file);
	for (uint32_t at = 0; at < MAX_FILE && at < file; at += sizeof(word))
		*digest = mix(*digest, *(word *)(s->texts + at));
	for (uint32_t at = 0; at < MAX_NAME && at < name; at += sizeof(word))
		*digest = mix(*digest, *(word *)(s->texts + MAX_FILE + at));
	*digest ^= *digest >> 29;
	return 1;
}

static INLINE int is_known(struct scratch *s, const struct interpreter *p, word code, word digest)
{
	struct code_key key = {p->program, code};
	struct known_code *known = bpf_map_lookup_elem(&known_codes, &key);
	word texts;
	if (!known || known->digest != digest)
		return 0;
	if (!p->layout.compares_text)
		return 1;
	struct known_code its = *known;
	return digest_texts(s, &its, &texts) && texts == its.text_digest;
}

// text_of finds the text of a copied string in the layout of versions before 3.12.
static INLINE void text_of(struct known_code *k, uint32_t i, const uint8_t *string, word at)
{
	enum { LENGTH = 16, STATE = STRING_HEAD - 8, ASCII = 48, WIDE = 72 };
	uint32_t state = *(const uint32_t *)(string + STATE);
	word characters = *(const word *)(string + LENGTH) + 1; // the terminating 0
	bool ascii = state >> 6 & 1;
	k->texts[i].at = at + (ascii ? ASCII : WIDE);
	k->texts[i].size = ((ascii ? characters : characters * (state >> 2 & 7)) + 7) & ~(word)7; // objects begin and end at multiples of 16
}

// identify returns the digest of the code object whose head was read, before 3.12 with the texts of
// both names, and reports whether all that could be read.
static INLINE int identify(struct scratch *s, const struct py_layout *l, uint32_t *digest)
{
	*digest = py_digest(s->head);
	if (!l->compares_text)
		return 1;
	struct known_code k = {};
	word texts, file = py_word(s->head, l->file), name = py_word(s->head, l->name);
	if (bpf_probe_read_user(s->texts, STRING_HEAD, (void *)file))
		return 0;
	text_of(&k, 0, s->texts, file);
	if (bpf_probe_read_user(s->texts, STRING_HEAD, (void *)name))
		return 0;
	text_of(&k, 1, s->texts, name);
	if (!digest_texts(s, &k, &texts))
		return 0;
	*digest ^= texts;
	return 1;
}

// check_code checks whether the code object of a frame is known, and returns the frame's word for
// it. If it is unknown, it is listed for copy_code, unless there are too many such. Within one walk
// each code object is checked once.
static INLINE word check_code(py_reader *r, const struct py_frame *f, uint32_t *first)
{
	const struct interpreter *p = r->p;
	struct scratch *s = r->s;
	word code = f->code;
	uint32_t slot = code * 0x9e3779b97f4a7c15 >> 58;
	asm volatile("" : "+r"(slot));
	slot &= KEPT_CODES - 1;
	if (s->codes[slot].code == code && s->codes[slot].walk == s->walks) {
		*first = s->codes[slot].first_line;
		return py_code_word(f);
	}
	if (!py_read(r, PY_HEAD, code + p->layout.head, PY_HEAD_SIZE))
		return f->owner;
	*first = py_half(s->head, p->layout.first_line);
	word digest = py_digest(s->head);
	if (!(s->python_is_kept && s->codes[slot].code == code && s->codes[slot].digest == digest) && !is_known(s, p, code, digest)) {
		uint32_t n = s->new_codes;
		for (uint32_t i = 0; i < MAX_NEW && i < n; i++)
			if (s->new_code[i] == code)
				return py_code_word(f);
		// Each takes a program: others are needed for the next frames, for the stack, and
		// for a copy of that.
		uint32_t others = s->chain + CHAIN_OF_PYTHON - (uint32_t)s->event.python / PYTHON_AT_ONCE + CHAIN_OF_FRAMES + 1;
		asm volatile("" : "+r"(n));
		if (n >= MAX_NEW || n + others >= CHAIN)
			return identify(s, &p->layout, first) ? py_code_word(f) | PY_NOT_COPIED : f->owner;
		s->new_code[n] = code;
		s->new_codes = n + 1;
		digest = 0; // not known yet
	}
	s->codes[slot].code = code;
	s->codes[slot].digest = digest;
	s->codes[slot].walk = s->walks;
	s->codes[slot].first_line = *first;
	return py_code_word(f);
}

// copy_part copies bytes of an object into a part of a copy, and reports whether it could.
static INLINE int copy_part(struct code_copy *c, uint32_t part, void *to, uint32_t most, word at, word size)
{
	c->parts[part].at = at;
	if (size > most)
		size = most;
	asm volatile("" : "+r"(size));
	c->parts[part].size = 0;
	if (size > most || bpf_probe_read_user(to, size, (void *)at))
		return 0;
	c->parts[part].size = size;
	return 1;
}

// copy_string copies a string. The width of its characters is in its state, differently in each
// version, so it is first copied at its maximum size. That may fail where memory ends behind a
// shorter string.
static INLINE int copy_string(struct code_copy *c, const struct py_layout *l, uint32_t part, void *to, uint32_t most, word at)
{
	word length;
	if (bpf_probe_read_user(&length, sizeof length, (void *)at + l->length))
		return 0;
	if (length > most)
		length = most;
	return copy_part(c, part, to, most, at, l->wide + 4 * length) || copy_part(c, part, to, most, at, l->wide + length) ||
	       copy_part(c, part, to, most, at, l->ascii + length);
}

// copy_to copies the code object whose head was read, with room for a number of bytes of its line
// table, and reports whether all that names it is in.
static INLINE int copy_to(struct scratch *s, const struct py_layout *l, word id, word code, word lines, uint32_t most, struct known_code *k)
{
	struct code_copy *c = bpf_ringbuf_reserve(&ring, offsetof(struct code_copy, lines) + most, 0);
	word file = py_word(s->head, l->file), name = py_word(s->head, l->name), table = s->head[PY_HEAD_WORDS - 1];
	if (!c)
		return 0;
	c->head = record_of(id, 0, PYTHON_CODE);
	c->code = code;
	c->version = c->code_address = 0;
	c->parts[RUNTIME].at = c->parts[RUNTIME].size = 0;
	int whole = copy_part(c, OBJECT, c->object, MOST_OBJECT, code, l->object_size);
	whole &= copy_string(c, l, FILE_NAME, c->file, MOST_FILE, file);
	whole &= copy_string(c, l, FUNCTION_NAME, c->name, MOST_NAME, name);
	copy_part(c, LINES, c->lines, most, table, lines);
	if (whole && l->compares_text) {
		text_of(k, 0, c->file, file);
		text_of(k, 1, c->name, name);
	}
	bpf_ringbuf_submit(c, BPF_RB_NO_WAKEUP);
	return whole;
}

// copy_one copies the code object whose head was read, and reports whether it is known from now on.
// Events matter more than names: if the ring buffer is half full, nothing is copied.
static INLINE int copy_one(py_reader *r, word id, word code)
{
	struct scratch *s = r->s;
	const struct interpreter *p = r->p;
	const struct py_layout *l = &p->layout;
	struct code_key key = {p->program, code};
	struct known_code k = {};
	uint32_t slot = CODES_COPIED;
	word lines;
	if (bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) >= ring_bytes / 2)
		return 0;
	k.digest = py_digest(s->head);
	if (bpf_probe_read_user(&lines, sizeof lines, (void *)s->head[PY_HEAD_WORDS - 1] + l->byte_count))
		return 0;
	lines += l->bytes;
	if (!(lines <= FEW_LINES ? copy_to(s, l, id, code, lines, FEW_LINES, &k) : copy_to(s, l, id, code, lines, MOST_LINES, &k)))
		return 0;
	word *n = bpf_map_lookup_elem(&changes, &slot);
	if (n)
		__sync_fetch_and_add(n, 1);
	if (l->compares_text && !digest_texts(s, &k, &k.text_digest))
		return 1; // it is copied, and will be again
	bpf_map_update_elem(&known_codes, &key, &k, BPF_ANY);
	return 1;
}

// mark marks the frames of a code object that could not be copied. Its head may not have been read.
static INLINE void mark(struct scratch *s, const struct interpreter *p, word code, int has_head)
{
	uint32_t digest = 0;
	int is_identified = p && has_head && identify(s, &p->layout, &digest);
	for (uint32_t i = 0; i < MAX_PYTHON && i < s->event.python; i++) {
		word *at = &s->event.frames[2 * i];
		if ((at[0] & ~(word)PY_OWNER) != code)
			continue;
		at[0] = is_identified ? at[0] | PY_NOT_COPIED : at[0] & PY_OWNER;
		at[1] = at[1] >> 32 << 32 | digest;
	}
}

// copy_code copies the latest of the new code objects, and runs again for the next.
SEC("uprobe.multi/copy_code")
int copy_code(registers *r)
{
	word id = bpf_get_current_pid_tgid();
	uint32_t pid = id >> 32;
	struct scratch *s = scratch_in_use(id);
	struct interpreter *p = bpf_map_lookup_elem(&interpreters, &pid);
	if (!s)
		return 0;
	uint32_t n = s->new_codes - 1;
	asm volatile("" : "+r"(n));
	if (n < MAX_NEW) {
		word code = s->new_code[n];
		s->new_codes = n;
		py_reader reader = {s, p};
		int has_head = p && py_read(&reader, PY_HEAD, code + p->layout.head, PY_HEAD_SIZE);
		if (!has_head || !copy_one(&reader, id, code))
			mark(s, p, code, has_head);
		if (n)
			return go_on(r, s, COPY_CODE);
	}
	return go_on(r, s, UNWIND);
}
