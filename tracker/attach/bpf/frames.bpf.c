//go:build ignore

// Walks the frames of Python that a thread runs. The reader finds the interpreter of a process, and
// puts its layout into a map.

enum {
	MAX_THREADS = 512, // of Python, and interpreters, that are searched
	MAX_TRIES = 3,     // to find the thread: others may end while their list is walked
	STATUS_BOUND = 8,  // see python.StatusBound
};

enum search { FOUND_NONE, FOUND, UNKNOWN_THREAD, SEARCH_ON };

static INLINE word user_word(word at)
{
	word w = 0;
	bpf_probe_read_user(&w, sizeof w, (void *)at);
	return w;
}

// in_window returns the word at an offset in the window.
static INLINE word in_window(const struct scratch *s, word at)
{
	asm volatile("" : "+r"(at));
	return *(const word *)(s->window + (at & (WINDOW - 1)));
}

// find_thread looks for Python's thread among the next threads. A thread of the system may have a
// Python thread in several interpreters; its status says which one is bound. If two are bound,
// another thread of the system made one of them, and the right one is unknown. Before 3.12 threads
// have no such status: there must be a single interpreter then. In its list, a thread that has not
// started yet looks like the thread that made it, and is in front of that.
static INLINE enum search find_thread(struct scratch *s, const struct interpreter *p, word self)
{
	if (!s->threads) {
		s->found = 0;
		s->interpreter = user_word(p->first);
		s->python_at = user_word(s->interpreter + p->threads);
		if (p->status == PY_NONE && user_word(s->interpreter + p->next))
			return UNKNOWN_THREAD;
	}
	s->threads += THREADS_AT_ONCE;
	for (uint32_t turn = 0; turn < THREADS_AT_ONCE; turn++) {
		asm volatile("" : : : "memory");
		word size = p->thread_size, at = s->python_at;
		if (!at) {
			s->interpreter = user_word(s->interpreter + p->next);
			if (!s->interpreter)
				return s->found ? FOUND : FOUND_NONE;
			s->python_at = user_word(s->interpreter + p->threads);
			continue;
		}
		s->python_at = 0;
		asm volatile("" : "+r"(size));
		if (size > WINDOW || bpf_probe_read_user(s->window, size, (void *)at))
			continue;
		s->python_at = in_window(s, p->next_thread);
		if (in_window(s, p->thread_id) != self)
			continue;
		if (p->status == PY_NONE) {
			s->found = at;
		} else if (in_window(s, p->status) & STATUS_BOUND) {
			if (s->found)
				return UNKNOWN_THREAD;
			s->found = at;
			s->python_at = 0;
		}
	}
	return s->threads < MAX_THREADS ? SEARCH_ON : UNKNOWN_THREAD;
}

// read_frame reads a frame into the window, and returns where it is there; NULL if it cannot be
// read. Where the frames of callers are in front of it, several are read at once. The window begins
// in the page of the frame, which is there.
static INLINE const word *read_frame(struct scratch *s, const struct interpreter *p, word at)
{
	word size = p->layout.frame_size, into = at - s->window_at;
	asm volatile("" : "+r"(size));
	if (size > PY_MAX_PART)
		return NULL;
	if (!s->window_at || into > WINDOW - size) {
		word page = at & ~(word)4095, from = at + size - WINDOW;
		if (from < page)
			from = page;
		into = at - from;
		if (!p->stacked || into > WINDOW - size || !fill_window(s, from, WINDOW)) {
			into = s->window_at = 0;
			if (bpf_probe_read_user(s->window, size, (void *)at))
				return NULL;
		}
	}
	asm volatile("" : "+r"(into));
	return (const word *)(s->window + (into & (WINDOW - 1)));
}

static INLINE const word *py_read(py_reader *r, enum py_part part, word at, word size)
{
	switch (part) {
	case PY_POINTER: return bpf_probe_read_user(&r->s->pointer, sizeof r->s->pointer, (void *)at) ? NULL : &r->s->pointer;
	case PY_FRAME: return read_frame(r->s, r->p, at);
	case PY_HEAD: return bpf_probe_read_user(r->s->head, PY_HEAD_SIZE, (void *)at) ? NULL : r->s->head;
	}
	return NULL;
}

// py_found adds a frame to the event.
static INLINE void py_found(py_reader *r, unsigned n, const struct py_frame *f)
{
	struct scratch *s = r->s;
	uint32_t first = 0, to = 2 * n & (2 * MAX_PYTHON - 1);
	s->event.frames[to] = py_runs_code(f) ? check_code(r, f, &first) : py_code_word(f);
	s->event.frames[to + 1] = (word)f->where << 32 | first;
	s->event.python = n + 1;
}

// try_again reports whether there is another try to find the thread, and programs left for it.
static INLINE bool try_again(struct scratch *s)
{
	s->threads = 0;
	return ++s->tries < MAX_TRIES && s->chain + MAX_THREADS / THREADS_AT_ONCE + CHAIN_OF_PYTHON + CHAIN_OF_FRAMES + 1 < CHAIN;
}

// find_python finds the innermost frame.
SEC("uprobe.multi/find_python")
int find_python(registers *r)
{
	word id = bpf_get_current_pid_tgid();
	uint32_t pid = id >> 32, slot = CODES_COPIED;
	struct scratch *s = scratch_in_use(id);
	struct interpreter *p = bpf_map_lookup_elem(&interpreters, &pid);
	word *copied = bpf_map_lookup_elem(&changes, &slot);
	if (!s)
		return 0;
	if (!p || !copied)
		return go_on(r, s, UNWIND);
	word number = *copied; // a copy from now on is one that this walk may not know of
	enum search how = find_thread(s, p, python_thread(id));
	if (how == SEARCH_ON || (how == FOUND_NONE && try_again(s)))
		return go_on(r, s, FIND_PYTHON);
	s->window_at = 0;
	if (how != FOUND)
		return go_on(r, s, UNWIND);
	py_reader reader = {s, p};
	s->python_at = py_innermost(&reader, &p->layout, s->found);
	s->new_codes = 0;
	s->walks++;
	s->python_is_kept = s->kept_copies == number && s->kept_program == p->program && !p->layout.compares_text;
	s->kept_copies = number;
	s->kept_program = p->program;
	return go_on(r, s, WALK_PYTHON);
}

// walk_frames adds the next frames, from the innermost outwards, and reports whether there may be
// more.
static INLINE int walk_frames(py_reader *r)
{
	struct scratch *s = r->s;
	struct py_frame f;
	for (uint32_t turn = 0; turn < PYTHON_AT_ONCE; turn++) {
		asm volatile("" : : : "memory");
		uint32_t n = s->event.python;
		const word *part = n < MAX_PYTHON && s->python_at ? py_read(r, PY_FRAME, s->python_at, r->p->layout.frame_size) : NULL;
		if (!part)
			return 0;
		py_decode(&f, &r->p->layout, part);
		s->python_at = f.previous;
		py_found(r, n, &f);
	}
	return 1;
}

SEC("uprobe.multi/walk_python")
int walk_python(registers *r)
{
	word id = bpf_get_current_pid_tgid();
	uint32_t pid = id >> 32;
	struct scratch *s = scratch_in_use(id);
	struct interpreter *p = bpf_map_lookup_elem(&interpreters, &pid);
	if (!s)
		return 0;
	py_reader reader = {s, p};
	if (p && walk_frames(&reader))
		return go_on(r, s, WALK_PYTHON);
	return go_on(r, s, s->new_codes ? COPY_CODE : UNWIND);
}
