// A libcuda.so.1 that stands in front of the driver's, on which it depends: it reports to a watcher
// the calls that allocate and free, and those that make and destroy contexts. Every other function
// is found in the driver's own library. hooks.h, which Go writes, has DRIVER, its path, WAIT_MS, a
// HOOK for each function with the form of its arguments, and a GET for each that finds functions.
//
// The program never waits for the watcher for more than WAIT_MS, never dies of it, and never
// notices that it is gone.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <unwind.h>

#include "hooks.h"

enum { HIGH = 200, NOT_FOUND = 500 };

typedef uint64_t word;

#define INLINE inline __attribute__((always_inline))
#include "event.h"
#include "python.h"

#include "frames.h"
#include "parts.h"

#include "interpreter.h"
#include "pyframes.h"
#include "codes.h"
#include "ring.h"

typedef word (*function)(word, word, word, word, word, word); // all arguments come in registers
typedef struct {
	char bytes[64];
} ipc_handle; // CUipcMemHandle
typedef word (*opener)(word, ipc_handle, word);

enum { BEGINNING = 1, ENTRY_ONLY = 2, STACKED = 4, GIVES = 8, PITCHED = 16 };      // as in shim_linux.go
typedef struct event event;
enum { STACK = offsetof(event, frames) };

typedef struct {
	const char *name;
	int index, flags;
	unsigned described; // bytes that the second argument points to
	function real;
} hook;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of the connection
static int to = -1, gone = 1, closed, child;
static struct sockaddr_un watchers[2]; // where the watcher listens: a name of the network namespace, and a file
static socklen_t watcher_sizes[2];     // 0: there is none
static char token[33];                 // shows that this process was given the variable
static struct stat socket_is;
static word unshared[2], *lost = unshared; // how many events, and when the first was; the watcher has the page
static word in_vain;                       // bytes for which the last wait was in vain; 0 if none was
static word known;                         // objects that had been loaded when the watcher was given the mappings
static word mapped;                        // how often it was given them again
static pthread_key_t thread_ends;
static int has_key;                            // thread_ends is ours
static __thread word *inside;                  // frame of the outermost call
static __thread volatile sig_atomic_t holding; // this thread has the lock, or waits for it
static __thread uint32_t tid;                  // of this thread, 0 before its first event
static word unforked = 1, *same = &unforked;   // the kernel makes it 0 in the child of a fork, however that is made

static word now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (word)t.tv_sec * 1000000000 + (word)t.tv_nsec;
}

static void miss(void) {
	if (!lost[0]++)
		lost[1] = now();
}

// reachable reports whether the socket is still there. A program may close what is not its own: the
// number may be another file then.
static int reachable(void) {
	struct stat is;
	closed = closed || fstat(to, &is) || is.st_ino != socket_is.st_ino || is.st_dev != socket_is.st_dev;
	return !closed;
}

// say sends a message, and reports whether there was room. If nobody is there, the watcher is gone.
static int say(const void *e, size_t n) {
	if (reachable() && send(to, e, n, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
		return 1;
	gone = closed ? !ring : errno != EAGAIN && errno != ENOBUFS;
	if (gone && !closed)
		close(to);
	return 0;
}

// tell leaves an event in the ring and wakes the watcher if it sleeps, or sends it, and reports
// whether there was room.
static int tell(const void *e, size_t n) {
	if (!ring)
		return say(e, n);
	if (!write_down(e, n))
		return 0;
	if (wants_to_be_woken() && !closed)
		say("", 1);
	return 1;
}

// tell_in_time tells an event, and waits until there is room. All waits of a call end at *end, which
// the first sets. After a wait in vain nothing waits, until as many bytes have had room: a small
// record that has does not show that the watcher reads. Hold the lock.
static int tell_in_time(const void *e, size_t n, word *end) {
	while (!tell(e, n)) {
		word t = now();
		if (gone)
			return 0;
		*end = *end ? *end : t + WAIT_MS * (word)1000000;
		if (in_vain || t >= *end) {
			in_vain = in_vain ? in_vain : n;
			return 0;
		}
		struct pollfd room = {.fd = reachable() ? to : -1, .events = ring ? 0 : POLLOUT};
		if (poll(&room, 1, 1) > 0 && ring) { // it has hung up
			gone = 1;
			close(to);
		}
	}
	in_vain = n >= in_vain ? 0 : in_vain;
	return !gone;
}

// put writes an event, or drops it. Hold the lock.
static int put(const event *e, size_t n, word *end) {
	int told = tell_in_time(e, n, end);
	if (!told && (!gone || closed))
		miss();
	return told;
}

static void fill(event *e, uint32_t phase) {
	e->head.time = now();
	e->head.tid = tid = tid ? tid : (uint32_t)syscall(SYS_gettid);
	e->head.phase = phase;
}

// mappings returns a file with the mappings that this process has now: it may be gone when the
// watcher looks.
static int mappings(void) {
	int from = open("/proc/self/maps", O_RDONLY | O_CLOEXEC), copy = memfd_create("gpumemtrack", MFD_CLOEXEC);
	char part[4096];
	ssize_t n;
	word size = 0;
	while (from >= 0 && copy >= 0 && (n = read(from, part, sizeof part)) > 0 && without_limit(size += (word)n))
		if (write(copy, part, (size_t)n) != n)
			break;
	if (from >= 0)
		close(from);
	return copy;
}

enum { MAX_FILES = 3 };

// give sends an event with files, and closes them. A file that is -1 is left out.
static int give(event *e, int *files, int n) {
	struct iovec text = {e, SHORT_SIZE};
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(MAX_FILES * sizeof(int))];
	} with = {0};
	struct msghdr m = {.msg_iov = &text, .msg_iovlen = 1};
	int given[MAX_FILES], count = 0;
	for (int i = 0; i < n; i++)
		if (files[i] >= 0) {
			given[count++] = files[i];
			e->args[5] |= (word)1 << i;
		}
	if (count) {
		m.msg_control = &with;
		m.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
		with.head = (struct cmsghdr){.cmsg_len = CMSG_LEN((size_t)count * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(&with.head), given, (size_t)count * sizeof(int));
	}
	int sent = reachable() && sendmsg(to, &m, MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
	for (int i = 0; i < count; i++)
		close(given[i]);
	return sent;
}

// start_time is when this process started, which no exec changes; 0 if that is unknown. With the
// process ID it tells processes apart.
static word start_time(void) {
	char text[1024], *at;
	int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	ssize_t n = file < 0 ? 0 : read(file, text, sizeof text - 1);
	if (file >= 0)
		close(file);
	text[n < 0 ? 0 : n] = 0;
	at = strrchr(text, ')'); // the end of the name, which may have any letters
	for (int field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	return at ? strtoull(at + 1, NULL, 10) : 0;
}

// greet sends the first event: the token, the start of the process, the page of losses, the
// program, and its mappings.
static int greet(void) {
	event e = {0};
	fill(&e, child ? FORKED : EXECED);
	memcpy(e.args, token, sizeof token - 1);
	e.args[4] = start_time();
	int files[] = {share(&lost), open("/proc/self/exe", O_PATH | O_CLOEXEC), mappings()};
	if (lost != unshared && unshared[0]) {
		lost[0] += unshared[0];
		lost[1] = unshared[1];
		unshared[0] = 0;
	}
	return give(&e, files, 3);
}

// await_room waits until the socket has room for a message, for WAIT_MS at most, once in vain.
static void await_room(void) {
	struct pollfd room = {.fd = reachable() ? to : -1, .events = POLLOUT};
	if (!in_vain && poll(&room, 1, WAIT_MS) == 0)
		in_vain = 1;
}

// map_again sends the mappings if objects were loaded since, and writes into the ring which events
// they are for: those behind the record with their number, 0 if they could not be sent. It returns 0
// if that cannot be written either: an event would be named after code that is gone. Hold the lock.
static int map_again(word objects, word *end) {
	if (objects <= known)
		return 1;
	await_room();
	event e = {0};
	fill(&e, CODE_LOADED);
	e.args[0] = mapped + 1;
	int files[] = {-1, -1, mappings()};
	int sent = give(&e, files, 3);
	if (sent)
		mapped++;
	else
		e.args[0] = 0;
	if (ring ? !put(&e, SHORT_SIZE, end) : !sent)
		return 0;
	if (sent)
		known = objects;
	return 1;
}

// connected connects once; the child of a fork does so again. Hold the lock.
static int connected(void) {
	if (to >= 0 || gone)
		return !gone;
	gone = 1;
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (s < 0)
		return 0;
	int high = fcntl(s, F_DUPFD_CLOEXEC, HIGH); // out of the way of programs that count on low numbers
	if (high >= 0) {
		close(s);
		s = high;
	}
	struct timeval patience = {.tv_sec = WAIT_MS / 1000}; // many may want to connect
	setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
	int reached = 0;
	for (int i = 0; i < 2 && !reached; i++)
		reached = watcher_sizes[i] && !connect(s, (struct sockaddr *)&watchers[i], watcher_sizes[i]);
	if (!reached || fstat(s, &socket_is)) {
		close(s);
		return 0;
	}
	to = s;
	gone = !greet();
	return !gone;
}

// take takes the lock, but not in a signal handler of the thread that has it.
static int take(void) {
	if (holding)
		return 0;
	holding = 1;
	pthread_mutex_lock(&lock);
	return 1;
}

static void release(void) {
	pthread_mutex_unlock(&lock);
	holding = 0;
}

static void in_child(void);

// stack_code is what code a stack is of.
struct stack_code {
	word objects;           // that had been loaded; 0 if that is unknown
	word prints[PY_FRAMES]; // of the code objects of Python's frames
};

// tell_codes writes the code objects of an event that are new. A frame whose code object the watcher
// has no copy of loses its address: another may be there when that is read. Hold the lock.
static void tell_codes(event *e, const word *prints, word *end) {
	static struct code_copy c;
	for (word i = 0; i < e->python; i++) {
		word *at = &e->frames[2 * i], code = *at & ~(word)PY_TAGS;
		if (prints[i] == NO_CODE || is_known(code, prints[i]))
			continue;
		size_t n = copy_code(&c, code);
		c.head.phase = PYTHON_CODE;
		if (n && tell_in_time(&c, n, end))
			keep_known(code, prints[i]);
		else
			*at &= PY_TAGS;
	}
}

// emit writes an event, with a stack if it has code.
static void emit(event *e, const struct stack_code *code, size_t n, uint32_t phase) {
	int before = errno;
	if (!*same)
		in_child();
	if (!take()) {
		miss();
		return;
	}
	fill(e, phase);
	word end = 0;
	if (connected()) {
		if (code && !map_again(code->objects, &end))
			miss();
		else {
			if (code)
				tell_codes(e, code->prints, &end);
			if (put(e, n, &end) && has_key && phase != EXITED)
				pthread_setspecific(thread_ends, (void *)1);
		}
	} else if (closed)
		miss();
	release();
	errno = before;
}

// pass_on calls the driver's function, with the handle behind the first argument if there is one.
static word pass_on(const hook *h, const word *a, const ipc_handle *handle) {
	if (handle)
		return ((opener)(void *)h->real)(a[0], *handle, a[1]);
	return h->real(a[0], a[1], a[2], a[3], a[4], a[5]);
}

static word call(const hook *h, const word *a, const ipc_handle *handle, word *frame) {
	if (!h->real)
		return NOT_FOUND;
	if (inside && frame < inside) // the driver's own business
		return pass_on(h, a, handle);
	inside = frame;
	event e; // of which Python's frames are long, and seldom sent
	memset(&e, 0, STACK);
	e.head.function = (uint32_t)h->index;
	memcpy(e.args, a, sizeof e.args);
	if (h->flags & (BEGINNING | ENTRY_ONLY))
		emit(&e, NULL, SHORT_SIZE, CALL_ENTRY);
	e.result = pass_on(h, a, handle);
	int before = errno; // reading a stack changes it
	int failed = (int)e.result != 0, tells = h->flags & BEGINNING ? failed : !(h->flags & ENTRY_ONLY);
	if (!failed && h->flags & GIVES && a[0])
		e.out = *(word *)a[0];
	if (!failed && h->flags & PITCHED && a[1])
		e.pitch = *(word *)a[1];
	if (!failed && h->described && a[1])
		memcpy(e.desc, (void *)a[1], h->described);
	size_t n = SHORT_SIZE;
	struct stack_code code, *stacked = NULL;
	if (tells && h->flags & STACKED) {
		stacked = &code;
		code.objects = code_at(0).loads;
		e.python = python_frames(e.frames, code.prints, code.objects);
		uint32_t found = callers(e.frames + 2 * e.python, frame);
		if (found > MAX_FRAMES) {
			found = MAX_FRAMES;
			e.total_end = TRUNCATED;
		}
		e.depth = e.total = (uint8_t)found;
		n = STACK + sizeof(word) * (2 * e.python + found);
	}
	if (tells)
		emit(&e, stacked, n, CALL_RETURN);
	inside = NULL;
	errno = before;
	return e.result;
}

enum {
#define HOOK(index, flags, described, name, form) hook_##name,
	HOOKS
#undef HOOK
	hook_count
};

static hook hooks[hook_count + 1] = {
#define HOOK(index, flags, described, name, form) {#name, index, flags, described, NULL},
	HOOKS
#undef HOOK
};

#define EXPORT __attribute__((visibility("default")))

#define WORDS(name)                                                                \
	EXPORT word name(word a, word b, word c, word d, word e, word f) {             \
		word args[6] = {a, b, c, d, e, f};                                     \
		return call(&hooks[hook_##name], args, NULL, __builtin_frame_address(0)); \
	}
#define HANDLE(name)                                                               \
	EXPORT word name(word a, ipc_handle handle, word b) {                          \
		word args[6] = {a, b};                                                 \
		return call(&hooks[hook_##name], args, &handle, __builtin_frame_address(0)); \
	}
#define HOOK(index, flags, described, name, form) form(name)
HOOKS
#undef HOOK

static void *const shims[hook_count + 1] = {
#define HOOK(index, flags, described, name, form) (void *)name,
	HOOKS
#undef HOOK
};

enum {
#define GET(name) get_##name,
	GETTERS
#undef GET
	get_count
};

static function getters[get_count + 1];
static word found(word result, word to_function);

#define GET(name)                                                                      \
	EXPORT word name(word a, word b, word c, word d, word e, word f) {             \
		function real = getters[get_##name];                                   \
		return real ? found(real(a, b, c, d, e, f), b) : NOT_FOUND;            \
	}
GETTERS
#undef GET

static const struct {
	const char *name;
	void *shim;
} gets[get_count + 1] = {
#define GET(name) {#name, (void *)name},
	GETTERS
#undef GET
};

// found puts the shim in the place of the driver's function, whatever name and version it was
// asked for by.
static word found(word result, word to_function) {
	void **p = (void **)to_function;
	if ((int)result != 0 || !p || !*p)
		return result;
	for (int i = 0; i < hook_count; i++)
		if (*p == (void *)hooks[i].real) {
			*p = shims[i];
			return result;
		}
	for (int i = 0; i < get_count; i++)
		if (*p == (void *)getters[i]) {
			*p = gets[i].shim;
			return result;
		}
	return result;
}

static void thread_ended(void *unused) {
	event e = {0};
	(void)unused;
	if (!gone)
		emit(&e, NULL, SHORT_SIZE, EXITED);
	free_reader();
}

static __thread int forks; // and took the lock for it

static void before_fork(void) { forks = take(); }

static void after_fork(void) {
	if (forks)
		release();
	forks = 0;
}

static void in_child(void) {
	pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
	lock = fresh;
	*same = 1;
	tid = 0;
	if (forks) // else what the signal interrupted lets go of it
		holding = 0;
	forks = 0;
	if (to >= 0 && !gone && reachable())
		close(to); // it is the parent's
	to = -1;
	gone = !token[0];
	closed = 0;
	leave_ring();
	memset(known_codes, 0, sizeof known_codes);
	lost = unshared;
	lost[0] = lost[1] = mapped = 0;
	in_vain = 0;
	searching = 0;
	child = 1;
}

// notice_forks has the child of a fork notice it that ran no handlers: by a system call, or by
// _Fork. It would write into its parent's ring.
static void notice_forks(void) {
	word *page = mmap(NULL, HEAD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED || madvise(page, HEAD, MADV_WIPEONFORK))
		return;
	*page = 1;
	same = page;
}

// find_watcher reads TOKEN:NAME:FILE. The name is abstract, which another network namespace does
// not have; the file may be "".
static void find_watcher(const char *text) {
	const char *name = text ? strchr(text, ':') : NULL, *file = name ? strchr(name + 1, ':') : NULL;
	if (!file || name - text != sizeof token - 1)
		return;
	memcpy(token, text, sizeof token - 1);
	size_t n = (size_t)(file - ++name), m = strlen(++file), room = sizeof watchers[0].sun_path;
	watchers[0].sun_family = watchers[1].sun_family = AF_UNIX;
	if (n && n < room) {
		memcpy(watchers[0].sun_path + 1, name, n);
		watcher_sizes[0] = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
	}
	if (m && m < room) {
		memcpy(watchers[1].sun_path, file, m);
		watcher_sizes[1] = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + m + 1);
	}
	gone = 0;
}

__attribute__((constructor)) static void begin(void) {
	void *driver = dlopen(DRIVER, RTLD_LAZY | RTLD_NOLOAD);
	for (hook *h = hooks; driver && h < hooks + hook_count; h++)
		*(void **)&h->real = dlsym(driver, h->name);
	for (int i = 0; driver && i < get_count; i++)
		*(void **)&getters[i] = dlsym(driver, gets[i].name);
	find_unwinder();
	known = code_at(0).loads;
	find_watcher(getenv("GPUMEMTRACK_ATTACH"));
	has_key = !pthread_key_create(&thread_ends, thread_ended);
	pthread_atfork(before_fork, after_fork, in_child);
	notice_forks();
	take();
	connected();
	release();
}
