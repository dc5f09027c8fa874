// Takes the frames of Python that a thread runs, by python.h.
//
// The invariant: each byte that a walk uses was copied by the kernel during the same call, from the
// address that the walk came to. So memory that is not there cannot end the program, and a frame or
// a code object that took the place of another is never taken for it. Within a call nothing
// changes: other threads leave the frames of this one alone, and a code object lives as long as a
// frame that runs it.
//
// To enter the kernel costs as much as to copy fifty parts. So a thread keeps which parts its
// latest walk read, and the next call has all of them copied at once, before its walk. This is a
// guess at where the walk will come to. What the guess lacks, the walk reads by itself. If all
// bytes are what they were, the walk is not repeated: it depends on nothing else.

enum {
	NOT_KEPT = 0xffff, // in place of an index in the latest walk
	// A string before 3.12: the head, and the text, of which nothing is read if it is longer.
	STRING_HEAD = 40,
	MAX_TEXT = 192,
	MAX_STRING = 72 + MAX_TEXT,
	// The parts of a walk: pointers, then frames, then heads of code objects, then two strings
	// for each head, of the file and of the function.
	MAX_POINTERS = 3,
	MAX_STRINGS = 2 * PY_FRAMES,
	MAX_WALK = MAX_POINTERS + 2 * PY_FRAMES + MAX_STRINGS,
	MAX_WALK_WORDS = MAX_POINTERS + PY_FRAMES * (PY_PART_WORDS + PY_HEAD_WORDS) + MAX_STRINGS * MAX_STRING / 8,
	PAGE = 4096,
};

#define NO_CODE PY_NONE // the print of a frame that runs no code, or whose code object cannot be read

// walk is what a walk has read, and what has come of it.
struct walk {
	word thread;
	int can_repeat; // everything was there
	unsigned found; // frames
	unsigned pointers, frames, heads, parts, words;
	struct iovec part[MAX_WALK];
	unsigned at[MAX_WALK];         // where the copy of a part is in copies
	unsigned char was_there[MAX_WALK];
	uint16_t head_of[PY_FRAMES];   // of a frame
	word print[PY_FRAMES];         // of a head
	word stack[2 * PY_FRAMES], prints[PY_FRAMES];
	word copies[MAX_WALK_WORDS];
};

// A thread has a reader from its first walk on, until it ends. It has 400 KB of addresses, and
// memory for as much of them as walks have used.
struct py_reader {
	volatile sig_atomic_t is_busy;
	struct walk walks[2], *latest, *next;
	word again[MAX_WALK_WORDS];       // the parts of the latest walk, as they are now
	unsigned char is_there[MAX_WALK]; // whether they are
	unsigned guess;                   // the frame of the latest walk that should be next
	struct py_frame frames[PY_FRAMES];
	uint16_t kept_frame[PY_FRAMES], kept_head[PY_FRAMES]; // what frames and heads of the next walk are in the latest
	word pointer, window_begin, window_end, window[PAGE / 8 + PY_PART_WORDS];
	struct iovec missing[MAX_STRINGS]; // parts to read at once
	uint16_t missing_is[MAX_STRINGS];  // which parts of the next walk, or strings, they are
	unsigned char has_missing[MAX_STRINGS];
	unsigned missing_count;
	word fresh[MAX_STRINGS * MAX_STRING / 8]; // their copies
};

static unsigned first_head(const struct walk *w) { return w->pointers + w->frames; }
static unsigned first_string(const struct walk *w) { return first_head(w) + w->heads; }

static word *copy_of(struct walk *w, unsigned part) { return w->copies + w->at[part]; }

static int is_part(const struct walk *w, unsigned part, word at) { return (word)w->part[part].iov_base == at; }

// now_at returns a part of the latest walk as it is now; NULL if it is not there any more.
static const word *now_at(const py_reader *r, unsigned part) { return r->is_there[part] ? r->again + r->latest->at[part] : NULL; }

// add adds a part to the next walk.
static void add(struct walk *w, word at, word size, const word *from) {
	unsigned part = w->parts++;
	w->part[part] = (struct iovec){(void *)at, size};
	w->at[part] = w->words;
	w->words += (unsigned)(size / sizeof(word));
	w->was_there[part] = from != NULL;
	if (from)
		memcpy(copy_of(w, part), from, size);
	else
		w->can_repeat = 0;
}

static void miss_part(py_reader *r, word at, word size, unsigned is) {
	r->missing_is[r->missing_count] = (uint16_t)is;
	r->missing[r->missing_count++] = (struct iovec){(void *)at, size};
}

// add_kept adds a part that may be one of the latest walk. If it is not there now, it is missing.
static void add_kept(py_reader *r, word at, word size, unsigned kept) {
	const word *now = kept == NOT_KEPT ? NULL : now_at(r, kept);
	int can_repeat = r->next->can_repeat;
	if (!now)
		miss_part(r, at, size, r->next->parts);
	add(r->next, at, size, now);
	r->next->can_repeat = can_repeat;
}

static void read_missing(py_reader *r) {
	struct walk *w = r->next;
	const word *from = r->fresh;
	if (!r->missing_count)
		return;
	if (!read_parts(r->fresh, r->missing, r->missing_count, r->has_missing))
		w->can_repeat = 0;
	for (unsigned i = 0; i < r->missing_count; i++) {
		word size = r->missing[i].iov_len;
		w->was_there[r->missing_is[i]] = r->has_missing[i];
		if (r->has_missing[i])
			memcpy(copy_of(w, r->missing_is[i]), from, size);
		from += size / sizeof(word);
	}
	r->missing_count = 0;
}

static const word *read_pointer(py_reader *r, word at) {
	for (unsigned i = 0; i < r->latest->pointers; i++)
		if (is_part(r->latest, i, at) && now_at(r, i))
			return now_at(r, i);
	return copy(&r->pointer, at, sizeof r->pointer) ? &r->pointer : NULL;
}

// read_window reads a frame, and what is in front of it in its page: since 3.11 the frames of
// callers are there.
static const word *read_window(py_reader *r, word at, word size) {
	if (at % sizeof(word))
		return NULL;
	if (at < r->window_begin || at + size > r->window_end) {
		r->window_begin = at / PAGE * PAGE;
		r->window_end = at + size;
		if (!copy(r->window, r->window_begin, r->window_end - r->window_begin)) {
			r->window_begin = r->window_end = 0;
			return NULL;
		}
	}
	return r->window + (at - r->window_begin) / sizeof(word);
}

static const word *read_frame(py_reader *r, word at, word size) {
	const struct walk *l = r->latest;
	uint16_t *kept = &r->kept_frame[r->next->frames];
	for (unsigned k = 0, i = r->guess; k < l->frames; k++, i++) {
		i = i < l->frames ? i : 0;
		if (is_part(l, l->pointers + i, at) && now_at(r, l->pointers + i)) {
			*kept = (uint16_t)i;
			r->guess = i + 1;
			return now_at(r, l->pointers + i);
		}
	}
	*kept = NOT_KEPT;
	return read_window(r, at, size);
}

static INLINE const word *py_read(py_reader *r, enum py_part part, word at, word size) {
	struct walk *w = r->next;
	const word *from = part == PY_FRAME ? read_frame(r, at, size) : read_pointer(r, at);
	if (!from) {
		w->can_repeat = 0;
		return NULL;
	}
	add(w, at, size, from);
	*(part == PY_FRAME ? &w->frames : &w->pointers) += 1;
	return copy_of(w, w->parts - 1);
}

static INLINE void py_found(py_reader *r, unsigned n, const struct py_frame *f) { r->frames[n] = *f; }

// head_at returns which head of a walk is at an address.
static uint16_t head_at(const struct walk *w, word at) {
	for (unsigned i = 0; i < w->heads; i++)
		if (is_part(w, first_head(w) + i, at))
			return (uint16_t)i;
	return NOT_KEPT;
}

// read_heads reads the heads of the code objects that the frames run, each once.
static void read_heads(py_reader *r) {
	struct walk *l = r->latest, *w = r->next;
	uint16_t next_head[PY_FRAMES]; // of one of the latest walk
	memset(next_head, 0xff, sizeof next_head);
	for (unsigned i = 0; i < w->found; i++) {
		w->head_of[i] = NOT_KEPT;
		if (!py_runs_code(&r->frames[i]))
			continue;
		word at = r->frames[i].code + python.layout.head;
		uint16_t kept = r->kept_frame[i] == NOT_KEPT ? NOT_KEPT : l->head_of[r->kept_frame[i]];
		if (kept == NOT_KEPT || !is_part(l, first_head(l) + kept, at))
			kept = head_at(l, at);
		uint16_t *head = &w->head_of[i];
		*head = kept == NOT_KEPT ? head_at(w, at) : next_head[kept];
		if (*head != NOT_KEPT)
			continue;
		*head = (uint16_t)w->heads;
		add_kept(r, at, PY_HEAD_SIZE, kept == NOT_KEPT ? kept : first_head(l) + kept);
		r->kept_head[w->heads++] = kept;
		if (kept != NOT_KEPT)
			next_head[kept] = *head;
	}
	read_missing(r);
}

// string_size returns the size of a string, by its head. Of one that is too long, only the head is
// read.
static word string_size(const word *head) {
	const struct py_layout *l = &python.layout;
	word length = head[l->length / sizeof *head], state = head[STRING_HEAD / sizeof *head - 1];
	int is_ascii = state >> 6 & 1;
	word text = length * (is_ascii ? 1 : state >> 2 & 7);
	return length > MAX_TEXT || text > MAX_TEXT ? STRING_HEAD : ((is_ascii ? l->ascii : l->wide) + text + 7) & ~(word)7;
}

// read_strings reads two strings for each head.
static void read_strings(py_reader *r) {
	struct walk *l = r->latest, *w = r->next;
	word at[MAX_STRINGS], size[MAX_STRINGS];
	uint16_t kept[MAX_STRINGS];
	for (unsigned i = 0; i < 2 * w->heads; i++) {
		unsigned head = first_head(w) + i / 2;
		kept[i] = NOT_KEPT;
		at[i] = size[i] = 0;
		if (!w->was_there[head])
			continue;
		at[i] = py_word(copy_of(w, head), i % 2 ? python.layout.name : python.layout.file);
		if (r->kept_head[i / 2] != NOT_KEPT) {
			unsigned part = first_string(l) + 2 * r->kept_head[i / 2] + i % 2;
			size[i] = l->part[part].iov_len;
			if (is_part(l, part, at[i]) && now_at(r, part) && size[i] && string_size(now_at(r, part)) == size[i])
				kept[i] = (uint16_t)part;
		}
		if (kept[i] == NOT_KEPT)
			miss_part(r, at[i], STRING_HEAD, i);
	}
	if (r->missing_count)
		read_parts(r->fresh, r->missing, r->missing_count, r->has_missing);
	for (unsigned m = 0; m < r->missing_count; m++)
		size[r->missing_is[m]] = r->has_missing[m] ? string_size(r->fresh + m * STRING_HEAD / sizeof(word)) : STRING_HEAD;
	r->missing_count = 0;
	for (unsigned i = 0; i < 2 * w->heads; i++)
		add_kept(r, at[i], size[i], kept[i]);
	read_missing(r);
}

static word mixed(word print, const unsigned char *from, size_t n) {
	for (word w; n >= sizeof w; from += sizeof w, n -= sizeof w) {
		memcpy(&w, from, sizeof w);
		print = (print ^ w) * 0x9e3779b97f4a7c15;
		print ^= print >> 29;
	}
	while (n--)
		print = (print ^ *from++) * 0x9e3779b97f4a7c15;
	return print;
}

// print_of identifies a code object among those that are at its address at different times; 0 if
// that is not possible. Since 3.12 the head has a unique number. Before, the texts of both names
// are compared.
static word print_of(struct walk *w, unsigned head) {
	word print = py_digest(copy_of(w, first_head(w) + head));
	for (unsigned i = 0; python.layout.compares_text && i < 2; i++) {
		unsigned part = first_string(w) + 2 * head + i;
		if (!w->was_there[part] || w->part[part].iov_len == STRING_HEAD)
			return 0;
		print = mixed(print, (const unsigned char *)copy_of(w, part), w->part[part].iov_len);
	}
	return print && print != NO_CODE ? print : 1;
}

// is_unchanged reports whether a part of the latest walk has the same bytes now.
static int is_unchanged(py_reader *r, unsigned part) {
	return now_at(r, part) && r->latest->was_there[part] && !memcmp(now_at(r, part), copy_of(r->latest, part), r->latest->part[part].iov_len);
}

static int is_print_unchanged(py_reader *r, uint16_t kept) {
	unsigned strings = first_string(r->latest) + 2 * kept;
	return is_unchanged(r, first_head(r->latest) + kept) &&
		(!python.layout.compares_text || (is_unchanged(r, strings) && is_unchanged(r, strings + 1)));
}

// read_codes reads what there is to know of the code objects of the frames, and finishes the walk.
static void read_codes(py_reader *r) {
	struct walk *w = r->next;
	read_heads(r);
	if (python.layout.compares_text)
		read_strings(r);
	for (unsigned i = 0; i < w->heads; i++) {
		uint16_t kept = r->kept_head[i];
		if (!w->was_there[first_head(w) + i])
			w->print[i] = NO_CODE;
		else
			w->print[i] = kept != NOT_KEPT && is_print_unchanged(r, kept) ? r->latest->print[kept] : print_of(w, i);
	}
	for (unsigned i = 0; i < w->found; i++) {
		uint16_t head = w->head_of[i];
		w->prints[i] = head == NOT_KEPT ? NO_CODE : w->print[head];
		w->stack[2 * i] = w->prints[i] == NO_CODE ? r->frames[i].owner : py_code_word(&r->frames[i]);
		w->stack[2 * i + 1] = py_line_word(&r->frames[i], &python.layout, w->prints[i] == NO_CODE ? NULL : copy_of(w, first_head(w) + head));
	}
}

// is_certain is 0 if the state of the thread may not be that which runs: before 3.12, where there
// are several interpreters. Each begins with the address of the next.
static int is_certain(py_reader *r) {
	word at = python.layout.version < 0x030c && python.first ? python.first() : 0;
	const word *next = at ? py_read(r, PY_POINTER, at, sizeof *next) : NULL;
	return !next || !*next;
}

// walk_frames walks the frames of the current thread, and returns what came of it.
static const struct walk *walk_frames(py_reader *r, word thread) {
	struct walk *l = r->latest, *w = r->next;
	int all = !l->parts || read_parts(r->again, l->part, l->parts, r->is_there);
	if (all && l->can_repeat && l->thread == thread && !memcmp(r->again, l->copies, l->words * sizeof(word)))
		return l;
	w->thread = thread;
	w->can_repeat = 1;
	w->found = w->pointers = w->frames = w->heads = w->parts = w->words = 0;
	r->guess = r->missing_count = 0;
	r->window_begin = r->window_end = 0;
	if (is_certain(r))
		w->found = py_walk(r, &python.layout, thread);
	read_codes(r);
	r->latest = w;
	r->next = l;
	return w;
}

static __thread py_reader *own_reader;

static void free_reader(void) {
	py_reader *r = own_reader;
	own_reader = NULL;
	if (r)
		munmap(r, sizeof *r);
}

// find_reader returns the reader of this thread; NULL if there is no memory, or if it is in use:
// this is a signal handler then.
static py_reader *find_reader(void) {
	if (own_reader)
		return own_reader->is_busy ? NULL : own_reader;
	py_reader *r = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (r == MAP_FAILED)
		return NULL;
	r->latest = &r->walks[0];
	r->next = &r->walks[1];
	return own_reader = r;
}

// python_frames takes the frames of the interpreter that this thread is in. Two words for each are
// what package python decodes. The program has loaded so many objects.
static unsigned python_frames(word *to, word *prints, word objects) {
	word thread = current_thread(objects);
	py_reader *r = thread ? find_reader() : NULL;
	if (!r)
		return 0;
	int before = errno;
	r->is_busy = 1;
	const struct walk *w = walk_frames(r, thread);
	memcpy(to, w->stack, 2 * w->found * sizeof *to);
	memcpy(prints, w->prints, w->found * sizeof *prints);
	r->is_busy = 0;
	errno = before;
	return w->found;
}
