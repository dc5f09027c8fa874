// Tests of the shim's own functions: one that fails ends by a signal or with a status other than 0.
#include "shim.c"

#include <stdio.h>
#include <sys/wait.h>

#define CHECK(ok)                                                                  \
	if (!(ok)) {                                                               \
		fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #ok);   \
		exit(1);                                                           \
	}

static int watch(void) {
	int pair[2];
	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
	to = pair[0];
	gone = 0;
	CHECK(!fstat(to, &socket_is));
	return pair[1];
}

// A register that is no frame pointer may have any value.
static void test_walk(void) {
	word stack[MAX_FRAMES + 1], ends[] = {0, 1, 8, (word)-8, (word)-16, (word)-24, (word)1 << 63};
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
		word last[2] = {ends[i], 7}, first[2] = {(word)last, 5};
		memory m;
		read_from(&m, (word)first);
		CHECK(walk(stack, 0, (word)first, &m) == 2);
		CHECK(stack[0] == 5 && stack[1] == 7);
		CHECK(walk(stack, 0, ends[i], &m) == 0);
	}
}

static void on_signal(int unused) {
	(void)unused;
	event e = {0};
	emit(&e, NULL, SHORT_SIZE, CALL_ENTRY);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		_exit((emit(&e, NULL, SHORT_SIZE, CALL_ENTRY), 0));
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

// A signal comes while the thread has the lock.
static void test_signal(void) {
	watch();
	signal(SIGUSR1, on_signal);
	CHECK(take());
	raise(SIGUSR1);
	release();
	CHECK(take());
}

static void *calls(void *unused) {
	event e = {0};
	emit(&e, NULL, SHORT_SIZE, CALL_ENTRY);
	return unused;
}

// A thread that ends says so once.
static void test_thread_ends(void) {
	int out = watch(), ended = 0;
	pthread_t t;
	CHECK(!pthread_create(&t, NULL, calls, NULL) && !pthread_join(t, NULL));
	event e;
	while (recv(out, &e, sizeof e, MSG_DONTWAIT) > 0)
		ended += e.head.phase == EXITED;
	CHECK(ended == 1);
}

// Without a key of its own, the shim leaves those of the program alone.
static void test_no_key(void) {
	pthread_key_t key;
	while (!pthread_key_create(&key, NULL))
		CHECK(!pthread_setspecific(key, &key));
	has_key = 0;
	begin();
	CHECK(!has_key);
	watch();
	thread_ends = key = 0;
	pthread_setspecific(key, &key);
	calls(NULL);
	CHECK(pthread_getspecific(key) == &key);
}

static word asked(word a, word b, word c, word d, word e, word f) { return a & b & c & d & e & f & 0; }

// A program may ask cuGetProcAddress for itself.
static void test_get(void) {
	getters[get_cuGetProcAddress_v2] = asked;
	void *p = (void *)asked;
	CHECK(found(0, (word)&p) == 0 && p == (void *)cuGetProcAddress_v2);
	CHECK(found(0, 0) == 0 && found(1, (word)&p) == 1);
}

static ipc_handle passed;
static word passed_flags, opens = 0xabc000;

static word open_handle(word to_address, ipc_handle handle, word flags) {
	passed = handle;
	passed_flags = flags;
	*(word *)to_address = opens;
	return 0;
}

// A handle does not fit a register. The driver gets it whole, and the watcher the address and the
// call stack.
static void test_handle(void) {
	int out = watch();
	hooks[hook_cuIpcOpenMemHandle_v2].real = (function)(void *)open_handle;
	ipc_handle handle;
	for (size_t i = 0; i < sizeof handle; i++)
		handle.bytes[i] = (char)(i + 1);
	word address = 0;
	CHECK(cuIpcOpenMemHandle_v2((word)&address, handle, 1) == 0);
	CHECK(address == opens && passed_flags == 1 && !memcmp(&passed, &handle, sizeof handle));
	event e;
	CHECK(recv(out, &e, sizeof e, MSG_DONTWAIT) == (ssize_t)(STACK + sizeof(word) * e.total));
	CHECK(e.head.phase == CALL_RETURN && e.out == opens && e.args[0] == (word)&address && e.depth > 0);
	CHECK((int)e.head.function == hooks[hook_cuIpcOpenMemHandle_v2].index);
}

static word sets_errno(word a, word b, word c, word d, word e, word f) {
	errno = 77;
	return a & b & c & d & e & f & 0;
}

// The program sees errno as the driver has left it, also where the stack cannot be read.
static void test_errno(void) {
	watch();
	hook h = {.flags = STACKED, .real = sets_errno};
	word frame[2] = {8, 5}, args[6] = {0};
	unwinder.backtrace = NULL;
	errno = 0;
	CHECK(call(&h, args, NULL, frame) == 0 && errno == 77);
}

// watch_ring is watch, with a ring.
static int watch_ring(void) {
	int out = watch(), file = share(&lost);
	CHECK(ring && file >= 0 && lost == ring->lost);
	close(file);
	return out;
}

static word records(word from) { // between from and written, all of one length
	word length;
	memcpy(&length, (char *)ring + HEAD + from % RING, sizeof length);
	CHECK(length == SHORT_SIZE);
	return (written - from) / (sizeof length + SHORT_SIZE);
}

// A full ring costs the program one wait, and then events. Where there is room again, it goes on,
// and around.
static void test_full(void) {
	watch_ring();
	event e = {0};
	word fit = RING / (sizeof(word) + SHORT_SIZE), begun = now();
	for (word i = 0; i < fit + 3; i++)
		emit(&e, NULL, SHORT_SIZE, CALL_ENTRY);
	word waited = (now() - begun) / 1000000;
	CHECK(records(0) == fit && ring->written == written && lost[0] == 3 && lost[1] > begun);
	CHECK(waited >= WAIT_MS && in_vain);
	ring->read = written - 500; // the watcher reads
	for (int i = 0; i < 1000; i++)
		emit(&e, NULL, SHORT_SIZE, CALL_ENTRY);
	CHECK(records(fit * (sizeof(word) + SHORT_SIZE)) == 1000 && lost[0] == 3);
	for (word i = 0; i < 10 * fit; i++) {
		word from = written;
		ring->read = from;
		emit(&e, NULL, SHORT_SIZE, CALL_ENTRY);
		if (from % RING + sizeof(word) + SHORT_SIZE <= RING)
			CHECK(!memcmp((char *)ring + HEAD + from % RING + sizeof(word), &e, SHORT_SIZE));
	}
	CHECK(lost[0] == 3 && written > 10 * RING);
}

// The copy of a code object waits for room, too. Where that is in vain, its frame has no address, and
// the event is not lost. An event that fits behind it is no reason to wait for the next copy.
static void test_full_of_copies(void) {
	static word object[8], text[MOST_FILE / sizeof(word)];
	object[0] = object[1] = object[7] = (word)text;
	python.layout = (struct py_layout){.version = 0x030c, .file = 0, .name = 8, .object_size = sizeof object, .bytes = 8};
	watch_ring();
	enum { LEFT = 1500 }; // room for events
	CHECK(LEFT < offsetof(struct code_copy, lines));
	struct stack_code code = {.prints = {1}};
	event e = {0};
	while (written < RING - LEFT)
		emit(&e, NULL, SHORT_SIZE, CALL_ENTRY);
	for (int room = 0; room < 2; room++) {
		for (int i = 0; i < 3; i++, code.prints[0]++) {
			e.python = 1;
			e.frames[0] = (word)object | 1;
			emit(&e, &code, STACK + 2 * sizeof(word), CALL_RETURN);
			CHECK(e.frames[0] == (room ? (word)object | 1 : 1) && is_known((word)object, code.prints[0]) == room);
		}
		CHECK(!lost[0] && (room ? !in_vain : in_vain > LEFT));
		ring->read = written;
	}
}

// A program that writes over the ring's head is not harmed.
static void test_overwritten(void) {
	watch_ring();
	event e = {0};
	word wild[] = {1, written + 1, ~(word)0, (word)1 << 63, RING, RING + 1, (word)-RING};
	in_vain = 1;
	for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
		ring->read = ring->written = ring->wake_at = wild[i];
		emit(&e, NULL, SHORT_SIZE, CALL_ENTRY);
	}
	CHECK(!gone);
}

// The watcher is woken once at the place that it says, and if it has gone while the program waits
// for room, that is all.
static void test_wakes(void) {
	int out = watch_ring();
	char text[200];
	event e = {0};
	emit(&e, NULL, SHORT_SIZE, CALL_ENTRY);
	CHECK(recv(out, text, sizeof text, MSG_DONTWAIT) < 0);
	ring->wake_at = written + 150;
	for (int i = 0; i < 5; i++) {
		emit(&e, NULL, SHORT_SIZE, CALL_ENTRY);
		CHECK((recv(out, text, sizeof text, MSG_DONTWAIT) == 1) == (i == 1));
	}
	ring->read = written - RING;
	close(out);
	emit(&e, NULL, SHORT_SIZE, CALL_ENTRY);
	CHECK(gone && !lost[0]);
}

// The child of a fork leaves the ring to its parent, also in the middle of a record.
static void test_fork(int way) {
	watch_ring();
	event e = {0};
	emit(&e, NULL, SHORT_SIZE, CALL_ENTRY);
	char before[HEAD + 1000];
	memcpy(before, ring, sizeof before);
	head *parents = ring;
	pid_t pid = way ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
	if (!pid) {
		emit(&e, NULL, SHORT_SIZE, CALL_ENTRY);
		CHECK(!ring && !written && lost == unshared);
		fill(&e, CALL_ENTRY);
		CHECK(e.head.tid == (uint32_t)syscall(SYS_gettid));
		memset(parents, 1, sizeof before);
		_exit(0);
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(!memcmp(before, ring, sizeof before));
	emit(&e, NULL, SHORT_SIZE, CALL_ENTRY);
	CHECK(records(0) == 2);
}

int main(int argc, char **argv) {
	alarm(540); // a deadlock ends, and a busy machine has the time
	switch (argc > 1 ? argv[1][0] : 0) {
	case 'w': test_walk(); break;
	case 's': test_signal(); break;
	case 't': test_thread_ends(); break;
	case 'k': test_no_key(); break;
	case 'g': test_get(); break;
	case 'h': test_handle(); break;
	case 'e': test_errno(); break;
	case 'f': test_full(); break;
	case 'p': test_full_of_copies(); break;
	case 'o': test_overwritten(); break;
	case 'r': test_wakes(); break;
	case 'c': test_fork(0); break;
	case 'b': test_fork(1); break;
	default: return 2;
	}
	return 0;
}
