//go:build ignore

// Calls of the functions that are watched: programs at the start and the return of each, and at
// static probes.

// attachment returns the cookie of the probe that runs: the index of its function, with
// AT_INSTRUCTIONS or not, or of its static probe.
static INLINE uint32_t attachment(void *ctx)
{
	return has_cookie ? bpf_get_attach_cookie(ctx) : attached_to;
}

// is_repeated reports whether a probe is hit for the second time by one call. File systems show a
// file of an image in each container, as different files: each has probes, and all are hit by a
// call.
static INLINE bool is_repeated(registers *r, struct thread *t)
{
	word file = has_cookie ? bpf_get_attach_cookie(r) >> 32 : 0;
	if (t->last_pc == PROGRAM_COUNTER(r) && t->last_sp == STACK_POINTER(r) && t->last_file != file)
		return 1;
	t->last_pc = PROGRAM_COUNTER(r);
	t->last_sp = STACK_POINTER(r);
	t->last_file = file;
	return 0;
}

static INLINE struct thread *thread_of(word id)
{
	struct thread *t = bpf_map_lookup_elem(&threads, &id);
	if (t)
		return t;
	struct thread none = {};
	bpf_map_update_elem(&threads, &id, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&threads, &id);
}

static INLINE struct scratch *scratch_of(word id)
{
	struct scratch *s = bpf_map_lookup_elem(&scratches, &id);
	uint32_t only = 0;
	if (s)
		return s;
	s = bpf_map_lookup_elem(&empty_scratch, &only);
	if (s)
		bpf_map_update_elem(&scratches, &id, s, BPF_NOEXIST);
	return bpf_map_lookup_elem(&scratches, &id);
}

// report_entry writes an event of the arguments of a call.
static INLINE void report_entry(word id, uint32_t index, const word *args)
{
	struct event *e = reserve_call(id, index, CALL_ENTRY);
	if (!e)
		return;
	for (int i = 0; i < ARGUMENT_COUNT; i++)
		e->args[i] = args[i];
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
}

// fill_results sets the arguments of a call, its result, and what it wrote where its arguments
// point.
static INLINE void fill_results(struct event *e, const struct function *f, const word *args, word result)
{
	e->result = result;
	e->out = e->pitch = 0;
	for (int i = 0; i < ARGUMENT_COUNT; i++)
		e->args[i] = args[i];
	if (f->flags & WRITES_RESULT)
		bpf_probe_read_user(&e->out, sizeof e->out, (void *)args[f->address % 8 < ARGUMENT_COUNT ? f->address % 8 : 0]);
	if (f->flags & WRITES_PITCH)
		bpf_probe_read_user(&e->pitch, sizeof e->pitch, (void *)args[1]);
}

// start_stack begins an event with a stack in the thread's scratch buffer. Other programs add the
// frames of Python and those of the stack, from an address on, and output it.
static INLINE int start_stack(registers *r, word id, const struct generation *g, uint32_t index, const struct function *f, const word *args, word pc, word sp)
{
	struct scratch *s = scratch_of(id);
	uint32_t pid = id >> 32, slot = RULES_REMOVED;
	word *removals = bpf_map_lookup_elem(&changes, &slot);
	if (!s || !removals) {
		lose();
		return 0;
	}
	struct event *e = &s->event;
	e->head = record_of(id, index, CALL_RETURN);
	fill_results(e, f, args, RESULT(r));
	for (int i = 0; i < 5; i++)
		e->desc[i] = 0;
	if (f->flags & HAS_DESCRIPTOR)
		bpf_probe_read_user(e->desc, sizeof e->desc, (void *)args[1]);
	e->generation = g->code;
	e->python = 0;
	e->total = 0;
	s->at.pc = pc;
	s->at.sp = sp;
	s->at.fp = FRAME_POINTER(r);
	s->past_unknown = 0;
	s->window_at = 0;
	s->chain = s->tries = s->threads = 0;
	if (s->kept_generation != g->code || s->kept_removals != *removals) {
		s->kept_generation = g->code;
		s->kept_removals = *removals;
		s->kept_rules = 0;
	}
	return go_on(r, s, bpf_map_lookup_elem(&interpreters, &pid) ? FIND_PYTHON : UNWIND);
}

// was_unwound reports whether an exception ended a call: something else is where its return address
// was. Only a call whose returns are probed at its instructions can end so.
static INLINE bool was_unwound(const struct call *c)
{
	word at = 0;
	if (!c->at_instructions || !POPS_RETURN)
		return 0;
	return !bpf_probe_read_user(&at, sizeof at, (void *)c->stack) && at != c->saved_return;
}

// A watched call inside a watched call is internal to the library and ignored, unless it frees.
SEC("uprobe.multi/enter")
int enter(registers *r)
{
	word id = bpf_get_current_pid_tgid(), args[] = ARGUMENTS(r), stack = STACK_POINTER(r);
	struct generation *g = watching(id);
	if (!g)
		g = join(id);
	if (!g)
		return 0;
	uint32_t attached = attachment(r), index = attached & ~AT_INSTRUCTIONS;
	struct function *f = bpf_map_lookup_elem(&functions, &index);
	struct thread *t = thread_of(id);
	if (!f)
		return 0;
	if (!t) {
		lose();
		return 0;
	}
	if (is_repeated(r, t))
		return 0;
	struct call *c = &t->calls[f->flags & OF_LIBRARY ? 1 : 0];
	if (c->is_current && c->stack > stack && !(f->flags & NESTED) && !was_unwound(c))
		return 0;
	if (!(f->flags & ENTRY_ONLY)) {
		c->is_current = 1;
		c->function = index;
		c->stack = stack;
		c->at_instructions = attached != index;
		for (int i = 0; i < ARGUMENT_COUNT; i++)
			c->args[i] = args[i];
		// The trampoline would hide the callers of driver calls in the function.
		c->saved_return = f->flags & OF_LIBRARY ? return_address(r) : 0;
	}
	if (f->flags & ENTRY_ONLY && f->flags & RECORDS_STACK) // as at its return, since it has no result
		return start_stack(r, id, g, index, f, args, return_address(r), stack + POPS_RETURN);
	if (f->flags & (APPLIES_AT_ENTRY | ENTRY_ONLY))
		report_entry(id, index, args);
	return 0;
}

// At the kernel's return probe the return address is popped; at an instruction that returns it is not.
SEC("uprobe.multi/leave")
int leave(registers *r)
{
	word id = bpf_get_current_pid_tgid();
	struct generation *g = watching(id);
	if (!g)
		return 0;
	uint32_t attached = attachment(r), index = attached & ~AT_INSTRUCTIONS;
	bool at_instruction = attached != index;
	struct function *f = bpf_map_lookup_elem(&functions, &index);
	struct thread *t = bpf_map_lookup_elem(&threads, &id);
	if (!f || !t)
		return 0;
	struct call *c = &t->calls[f->flags & OF_LIBRARY ? 1 : 0];
	word sp = STACK_POINTER(r) + (at_instruction ? POPS_RETURN : 0);
	if (!c->is_current || c->function != index || c->stack + POPS_RETURN != sp)
		return 0;
	c->is_current = 0;
	if (f->flags & APPLIES_AT_ENTRY && !(uint32_t)RESULT(r)) // only a failure is reported
		return 0;
	if (f->flags & RECORDS_STACK)
		return start_stack(r, id, g, index, f, c->args, at_instruction ? return_address(r) : PROGRAM_COUNTER(r), sp);
	struct event *e = reserve_call(id, index, CALL_RETURN);
	if (!e)
		return 0;
	fill_results(e, f, c->args, RESULT(r));
	bpf_ringbuf_submit(e, f->flags & WAKES ? 0 : BPF_RB_NO_WAKEUP);
	return 0;
}

// value_of returns the value of a static probe's argument.
static INLINE word value_of(registers *r, const struct argument *a)
{
	word in = 0, value = 0;
	if (a->kind == CONSTANT)
		return (word)(int64_t)a->offset;
	if (bpf_probe_read_kernel(&in, sizeof in, (void *)r + a->in))
		return 0;
	if (a->kind == IN_REGISTER)
		value = in;
	else if (bpf_probe_read_user(&value, a->size <= sizeof value ? a->size : 0, (void *)in + a->offset))
		return 0;
	uint32_t above = 64 - a->bits & 63;
	return a->is_signed ? (word)((int64_t)(value << above) >> above) : value << above >> above;
}

// A static probe is not at the start of a function: its note says where its arguments are, and it
// has no return. Its program reports them like those of a call and, for an allocation, goes on as
// at the return of a call.
SEC("uprobe.multi/note")
int note(registers *r)
{
	word id = bpf_get_current_pid_tgid(), args[ARGUMENT_COUNT];
	struct generation *g = watching(id);
	if (!g)
		g = join(id);
	if (!g)
		return 0;
	uint32_t at = attachment(r);
	struct static_probe *p = bpf_map_lookup_elem(&static_probes, &at);
	struct thread *t = thread_of(id);
	if (!p || (t && is_repeated(r, t)))
		return 0;
	uint32_t index = p->function;
	struct function *f = bpf_map_lookup_elem(&functions, &index);
	if (!f)
		return 0;
	for (int i = 0; i < ARGUMENT_COUNT; i++)
		args[i] = value_of(r, &p->arguments[i]);
	if (f->flags & RECORDS_STACK) // rules are looked up for the byte before an address, as for return addresses
		return start_stack(r, id, g, index, f, args, PROGRAM_COUNTER(r) + 1, STACK_POINTER(r));
	report_entry(id, index, args);
	return 0;
}
