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
	word stack[FRAMES + 1], ends[] = {0, 1, 8, (word)-8, (word)-16, (word)-24, (word)1 << 63};
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
	emit(&e, SHORT, BEGINS);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		_exit((emit(&e, SHORT, BEGINS), 0));
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
	emit(&e, SHORT, BEGINS);
	return unused;
}

// A thread that ends says so once.
static void test_thread_ends(void) {
	int out = watch(), ended = 0;
	pthread_t t;
	CHECK(!pthread_create(&t, NULL, calls, NULL) && !pthread_join(t, NULL));
	event e;
	while (recv(out, &e, sizeof e, MSG_DONTWAIT) > 0)
		ended += e.phase == EXITED;
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

// A handle does not fit a register. The driver gets it whole, and the watcher the address and the call stack.
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
	CHECK(e.phase == RETURNS && e.out == opens && e.args[0] == (word)&address && e.depth > 0);
	CHECK((int)e.function == hooks[hook_cuIpcOpenMemHandle_v2].index);
}

int main(int argc, char **argv) {
	alarm(20);
	switch (argc > 1 ? argv[1][0] : 0) {
	case 'w': test_walk(); break;
	case 's': test_signal(); break;
	case 't': test_thread_ends(); break;
	case 'k': test_no_key(); break;
	case 'g': test_get(); break;
	case 'h': test_handle(); break;
	default: return 2;
	}
	return 0;
}
