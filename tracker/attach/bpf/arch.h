// What depends on the architecture: the registers of a thread, by the names of the kernel's struct
// pt_regs.

#if defined(__TARGET_ARCH_x86)

typedef struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
} registers;

#define ARGUMENTS(r) {(r)->di, (r)->si, (r)->dx, (r)->cx, (r)->r8, (r)->r9}
#define RESULT(r) ((r)->ax)
#define STACK_POINTER(r) ((r)->sp)
#define FRAME_POINTER(r) ((r)->bp)
#define PROGRAM_COUNTER(r) ((r)->ip)

enum { POPS_RETURN = 8 }; // bytes that a return pops off the stack

// return_address returns the return address at the start of a function, and at an instruction that returns; 0 if it cannot be read.
static __always_inline word return_address(registers *r)
{
	word at = 0;
	bpf_probe_read_user(&at, sizeof at, (void *)r->sp);
	return at;
}

struct thread_struct {
	unsigned long fsbase;
} __attribute__((preserve_access_index));

struct task_struct {
	int pid, tgid;
	uint64_t start_time;
	struct task_struct *real_parent, *group_leader;
	struct mm_struct *mm;
	struct signal_struct *signal;
	struct thread_struct thread;
} __attribute__((preserve_access_index));

// thread_pointer returns the register fs of the current thread, which is what pthread_self returns.
static __always_inline word thread_pointer(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	return BPF_CORE_READ(task, thread.fsbase);
}

// python_thread identifies the current thread as the threads of Python do.
#define python_thread(id) thread_pointer()

#elif defined(__TARGET_ARCH_arm64)

typedef struct user_pt_regs {
	uint64_t regs[31], sp, pc, pstate;
} registers;

#define ARGUMENTS(r) {(r)->regs[0], (r)->regs[1], (r)->regs[2], (r)->regs[3], (r)->regs[4], (r)->regs[5]}
#define RESULT(r) ((r)->regs[0])
#define STACK_POINTER(r) ((r)->sp)
#define FRAME_POINTER(r) ((r)->regs[29])
#define PROGRAM_COUNTER(r) ((r)->pc)

enum { POPS_RETURN = 0 };

static __always_inline word return_address(registers *r) { return r->regs[30]; }

struct task_struct {
	int pid, tgid;
	uint64_t start_time;
	struct task_struct *real_parent, *group_leader;
	struct mm_struct *mm;
	struct signal_struct *signal;
} __attribute__((preserve_access_index));

// What pthread_self returns depends on the C library here, and so does where the stack of a thread
// ends.
static __always_inline word thread_pointer(void) { return 0; }

#define python_thread(id) ((uint32_t)(id))

#endif

struct inode {
	unsigned long i_ino;
} __attribute__((preserve_access_index));

struct file {
	struct inode *f_inode;
} __attribute__((preserve_access_index));

struct mm_struct {
	unsigned long start_stack, end_code;
	struct file *exe_file;
} __attribute__((preserve_access_index));

struct signal_struct {
	struct {
		int counter;
	} live;
} __attribute__((preserve_access_index));

struct linux_binprm {
	const char *interp; // of a script, its interpreter
} __attribute__((preserve_access_index));
