//go:build ignore

// Unwinds the stack of a thread, while it is stopped, by rules that the reader has loaded for each
// return address from the tables of its file. If a rule is missing, the stack from there on is
// copied: the reader unwinds that, and loads the rules. So each address needs a copy once, and a
// stack with known addresses needs none.

static INLINE int fill_window(struct scratch *s, word at, uint32_t size)
{
	s->window_at = at;
	if (!bpf_probe_read_user(s->window, size, (void *)at))
		return 1;
	s->window_at = 0;
	return 0;
}

// unwind_read reads most words from the window.
static INLINE int unwind_read(unwinding *u, word at, word *to)
{
	struct scratch *s = u->s;
	word into = at - s->window_at;
	if (!s->window_at || into > WINDOW - sizeof *to) { // a frame pointer of 0 must not find what the window had before
		into = 0;
		if (!fill_window(s, at, WINDOW)) // the stack may end within the window
			return !bpf_probe_read_user(to, sizeof *to, (void *)at);
	}
	asm volatile("" : "+r"(into));
	*to = *(word *)(s->window + (into & (WINDOW - 1)));
	return 1;
}

// unwind_found adds a return address to the event.
static INLINE int unwind_found(unwinding *u, const struct unwind_frame *f)
{
	struct event *e = &u->s->event;
	uint32_t i = e->total, to = 2 * (uint32_t)e->python + i;
	asm volatile("" : "+r"(to) : : "memory"); // what the verifier need not know from one turn to the next is in the scratch buffer
	if (i >= MAX_FRAMES || to >= sizeof e->frames / sizeof *e->frames)
		return 0;
	e->frames[to] = f->pc;
	e->total = i + 1;
	return 1;
}

// note_unknown records the frame of an address without a rule.
static INLINE void note_unknown(struct scratch *s, word id)
{
	struct thread *t = bpf_map_lookup_elem(&threads, &id);
	s->past_unknown = 1;
	s->event.depth = s->event.total;
	s->event.end = UNKNOWN_FUNCTION;
	s->unknown.sp = s->at.sp;
	s->unknown.fp = s->at.fp;
	s->unknown.saved_return = s->unknown.saved_return_sp = 0;
	if (t && t->calls[1].is_current) {
		s->unknown.saved_return = t->calls[1].saved_return;
		s->unknown.saved_return_sp = t->calls[1].stack + POPS_RETURN;
	}
}

// unwind_find looks first at the rules of the thread's latest stack. Behind an address without a
// rule, it is that of functions with frame pointers: it may be wrong, but may be all that there is
// beyond the copied part.
static INLINE const struct unwind_rule *unwind_find(unwinding *u, const struct unwind_frame *f)
{
	struct scratch *s = u->s;
	struct rule_key key = {u->id >> 32, s->event.generation, f->pc};
	uint32_t i = s->event.total - 1;
	if (!s->past_unknown) {
		if (i < KEPT_RULES && i < s->kept_rules && s->rules[i].pc == key.pc) {
			s->rule = s->rules[i].rule;
			return &s->rule;
		}
		struct unwind_rule *rule = bpf_map_lookup_elem(&rules, &key);
		if (rule) {
			s->rule = *rule;
			if (i < KEPT_RULES && i <= s->kept_rules) {
				s->rules[i].pc = key.pc;
				s->rules[i].rule = *rule;
				if (i == s->kept_rules)
					s->kept_rules = i + 1;
			}
			return &s->rule;
		}
		note_unknown(s, u->id);
	}
	s->rule = FRAME_POINTER_RULE;
	return &s->rule;
}

static INLINE int unwind_saved(unwinding *u, struct unwind_frame *f)
{
	struct thread *t = bpf_map_lookup_elem(&threads, &u->id);
	if (!t || !t->calls[1].is_current || t->calls[1].stack + POPS_RETURN != f->sp)
		return 0;
	f->pc = t->calls[1].saved_return;
	return 1;
}

static INLINE void output(struct scratch *s, word flags)
{
	uint32_t size = offsetof(struct event, frames) + 8 * (2 * (uint32_t)s->event.python + s->event.total);
	asm volatile("" : "+r"(size));
	word id = bpf_get_current_pid_tgid();
	bool is_own = s->event.head.tid == (uint32_t)id; // else the map gave the buffer to another thread
	if (!is_own || size > sizeof s->event || !has_room(id, size) || bpf_ringbuf_output(&ring, &s->event, size, flags))
		lose();
}

SEC("uprobe.multi/unwind")
int unwind(registers *r)
{
	word id = bpf_get_current_pid_tgid();
	struct scratch *s = scratch_in_use(id);
	if (!s)
		return 0;
	unwinding u = {s, id};
	enum unwind_end end = unwind_walk(&u, &s->at, FRAMES_AT_ONCE);
	if (end == CONTINUED)
		return go_on(r, s, UNWIND);
	s->event.total_end = end;
	if (s->past_unknown)
		return go_on(r, s, COPY_STACK);
	s->event.depth = s->event.total;
	s->event.end = end;
	output(s, BPF_RB_NO_WAKEUP);
	return 0;
}

// room returns how much of a stack to copy. The fuller the ring buffer, the less, and nothing if it
// is half full: events matter more than the callers of some.
static INLINE word room(void)
{
	uint32_t half = ring_bytes / 2;
	word used = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA);
	return used < half ? (half - used) / (half / MAX_COPY) : 0;
}

// stack_size returns the size of a stack from its stack pointer on, at most a number of bytes: up
// to the top of the process's first stack, or up to the thread control block, which is above the
// stack of a thread that the C library made.
static INLINE word stack_size(word sp, word most)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	word top = BPF_CORE_READ(task, mm, start_stack), block = thread_pointer();
	if (top - sp < most)
		most = top - sp;
	if (block && block - sp < most)
		most = block - sp;
	return most;
}

// copy_stack outputs a copy of the stack from the first frame without a rule on, and then the
// event.
SEC("uprobe.multi/copy_stack")
int copy_stack(registers *r)
{
	word id = bpf_get_current_pid_tgid(), most = room();
	struct scratch *s = scratch_in_use(id);
	bool dropped = !most;
	if (!s)
		return 0;
	if (most)
		most = stack_size(s->unknown.sp, most);
	for (uint32_t at = 0; at < MAX_COPY && at < most; at += PART) {
		struct stack_part *p = bpf_ringbuf_reserve(&ring, sizeof *p, 0);
		if (!p) {
			dropped = 1;
			break;
		}
		p->head = record_of(id, 0, STACK_PART);
		p->start = s->unknown;
		p->offset = at;
		if (bpf_probe_read_user(p->bytes, sizeof p->bytes, (void *)s->unknown.sp + at)) {
			bpf_ringbuf_discard(p, BPF_RB_NO_WAKEUP);
			break;
		}
		bpf_ringbuf_submit(p, BPF_RB_NO_WAKEUP);
	}
	if (dropped)
		s->event.end = COPY_DROPPED;
	output(s, most ? 0 : BPF_RB_NO_WAKEUP); // the sooner rules are loaded, the fewer copies are needed
	return 0;
}
