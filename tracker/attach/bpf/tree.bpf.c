//go:build ignore

// The process tree: which processes are watched, and when their code changes.

// A new program, which the reader must see before its process ends.
struct exec {
	word pid, generation;
	word inode; // of the file: its path may be relative
	char path[MAX_PATH];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} execs SEC(".maps");

// describe fills an event of the life of a process.
static INLINE void describe(struct event *e, word first, word second)
{
	e->args[0] = first;
	e->args[1] = second;
	e->args[2] = bpf_get_current_cgroup_id();
	e->args[3] = e->args[4] = e->args[5] = 0;
}

// report writes an event of the life of a process.
static INLINE void report(word id, uint32_t phase, word first, word second, word flags)
{
	struct event *e = reserve(id, 0, phase, SHORT_SIZE);
	if (!e)
		return;
	describe(e, first, second);
	bpf_ringbuf_submit(e, flags);
}

// report_exec writes the event of an exec: with the file of the program, whose process may have
// ended when the event is read.
static INLINE void report_exec(word id, word now, const char *path)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct event *e = reserve(id, 0, EXECED, EXEC_SIZE);
	if (!e)
		return;
	describe(e, now, now);
	bpf_get_current_comm(&e->args[3], 2 * sizeof *e->args);
	e->args[5] = lost_of(id);
	e->result = BPF_CORE_READ(task, mm, end_code);
	e->out = BPF_CORE_READ(task, mm, exe_file, f_inode, i_ino);
	e->pitch = BPF_CORE_READ(task, real_parent, tgid);
	bpf_probe_read_kernel_str(&e->desc, MAX_PATH, path);
	bpf_ringbuf_submit(e, 0);
}

// renew begins a new code generation of a process, which is watched from now on. It returns the
// time.
static INLINE word renew(uint32_t pid)
{
	word now = bpf_ktime_get_ns();
	struct generation g = {now, now};
	if (bpf_map_update_elem(&watched, &pid, &g, BPF_ANY)) // there are MAX_PROCESSES
		lose();
	return now;
}

// forget drops what is kept of a thread: another may get its number.
static INLINE void forget(word id)
{
	bpf_map_delete_elem(&threads, &id);
	bpf_map_delete_elem(&scratches, &id);
}

// join begins to watch the current process, where every process is watched, at its first call. The
// reader must see it before it ends.
static INLINE struct generation *join(word id)
{
	uint32_t pid = id >> 32;
	struct task_struct *task = (void *)bpf_get_current_task();
	if (!watching_all())
		return NULL;
	word now = bpf_ktime_get_ns(), began = BPF_CORE_READ(task, group_leader, start_time), *program = bpf_map_lookup_elem(&programs, &pid);
	struct generation g = {now, now};
	if (program && *program > began) // else that is of an earlier process with the number
		began = *program;
	if (!bpf_map_update_elem(&watched, &pid, &g, BPF_NOEXIST)) { // else another thread was first, or there are too many
		forget(id); // of an earlier process with the number
		struct exec x = {.pid = pid, .generation = now};
		bpf_ringbuf_output(&execs, &x, sizeof x, 0);
		report(id, JOINED, began, now, 0);
	}
	struct generation *its = watching(id);
	if (!its)
		lose();
	return its;
}

// leave_all ends the program of a process, which is watched again when it calls a watched function.
static INLINE void leave_all(word id)
{
	uint32_t pid = id >> 32;
	word now = bpf_ktime_get_ns();
	if (!watching_all())
		return;
	bpf_map_update_elem(&programs, &pid, &now, BPF_ANY);
	bpf_map_delete_elem(&watched, &pid);
	bpf_map_delete_elem(&shares, &pid);
}

// report_exit writes the event of the end of a thread, with the losses of its process. If it is
// dropped, the reader may never have seen the process.
static INLINE void report_exit(word id, bool last)
{
	struct event *e = reserve(id, 0, EXITED, SHORT_SIZE);
	if (!e) {
		if (last)
			lose_for_all(lost_of(id));
		return;
	}
	describe(e, last, 0);
	if (last)
		e->args[5] = lost_of(id);
	bpf_ringbuf_submit(e, 0);
}

SEC("raw_tracepoint/sched_process_fork")
int forked(word *ctx)
{
	word id = bpf_get_current_pid_tgid();
	struct task_struct *task = (void *)ctx[1];
	if (!watching(id))
		return 0;
	uint32_t child = BPF_CORE_READ(task, tgid);
	// The last threads of a process may end at the same time: then only one of them is still
	// watched, and drops what is kept of it.
	forget((word)child << 32 | (uint32_t)BPF_CORE_READ(task, pid));
	if (child != id >> 32) // else a thread of the same process
		report(id, FORKED, child, renew(child), 0);
	return 0;
}

SEC("raw_tracepoint/sched_process_exec")
int execed(word *ctx)
{
	word id = bpf_get_current_pid_tgid();
	struct linux_binprm *program = (void *)ctx[2];
	if (watching_all()) {
		if (watching(id)) {
			forget(id);
			report_exec(id, bpf_ktime_get_ns(), BPF_CORE_READ(program, interp));
		}
		leave_all(id);
		return 0;
	}
	if (!watching(id))
		return 0;
	struct exec x = {.pid = id >> 32, .generation = renew(id >> 32)};
	struct task_struct *task = (void *)bpf_get_current_task();
	const char *path = BPF_CORE_READ(program, interp);
	x.inode = BPF_CORE_READ(task, mm, exe_file, f_inode, i_ino);
	bpf_probe_read_kernel_str(x.path, sizeof x.path, path);
	bpf_ringbuf_output(&execs, &x, sizeof x, 0);
	forget(id);
	report_exec(id, x.generation, path);
	return 0;
}

SEC("raw_tracepoint/sched_process_exit")
int exited(word *ctx)
{
	word id = bpf_get_current_pid_tgid();
	uint32_t pid = id >> 32;
	struct task_struct *task = (void *)ctx[0];
	if (!watching(id))
		return 0;
	struct signal_struct *its = BPF_CORE_READ(task, signal);
	bool last = !BPF_CORE_READ(its, live.counter);
	if (last)
		bpf_map_delete_elem(&watched, &pid);
	forget(id);
	report_exit(id, last);
	if (last && watching_all()) {
		bpf_map_delete_elem(&programs, &pid);
		bpf_map_delete_elem(&shares, &pid);
	}
	return 0;
}

// mapping runs before a process maps code.
SEC("uprobe.multi/mapping")
int mapping(void *ctx)
{
	struct generation *g = watching(bpf_get_current_pid_tgid());
	if (g)
		g->code = bpf_ktime_get_ns();
	return 0;
}

// unmapping runs before a process unmaps code: addresses may soon mean something else. Code that
// replaces other code is mapped after that was unmapped. So if no code was unmapped between an
// event and a read of the mappings, they hold for the addresses of the event.
SEC("uprobe.multi/unmapping")
int unmapping(void *ctx)
{
	word id = bpf_get_current_pid_tgid();
	if (watching(id))
		report(id, CODE_UNLOADED, 0, renew(id >> 32), BPF_RB_NO_WAKEUP);
	return 0;
}
