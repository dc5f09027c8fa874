#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "settings.h"

static const uint32_t MAGIC = 0x75656735; // changes with the layout

static state *shared;
static process *self;
static pthread_once_t once = PTHREAD_ONCE_INIT;

// start_time gives when a process started, or 0 if it runs no more: a process
// that was killed but not yet waited for (Z) holds no device memory either.
static uint64_t start_time(int pid) {
	char path[64], text[1024];
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	ssize_t n = read(fd, text, sizeof text - 1);
	close(fd);
	if (n <= 0)
		return 0;
	text[n] = 0;
	char *p = strrchr(text, ')'); // the command's name may hold anything
	char run;
	unsigned long long start;
	if (!p || sscanf(p + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &run, &start) != 2)
		return 0;
	return run == 'Z' || run == 'X' ? 0 : start + 1;
}

static void new_lock(pthread_mutex_t *lock) {
	pthread_mutexattr_t attr;
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(lock, &attr);
	pthread_mutexattr_destroy(&attr);
}

// configure lays out the machine as the environment of its first process says.
static void configure(void) {
	shared->devices = (uint32_t)settings_number("GPUEMU_DEVICES", 1);
	shared->memory = settings_bytes("GPUEMU_MEMORY", (uint64_t)24 << 30);
	shared->mig = settings_bytes("GPUEMU_MIG", 0);
	if (shared->mig > shared->memory)
		shared->mig = shared->memory;
	uint32_t most = shared->mig ? MAX_DEVICES - 1 : MAX_DEVICES;
	if (shared->devices > most)
		shared->devices = most;
	shared->reserved = settings_bytes("GPUEMU_RESERVED", (uint64_t)320 << 20);
	shared->context = settings_bytes("GPUEMU_CONTEXT", (uint64_t)256 << 20);
	snprintf(shared->name, sizeof shared->name, "%s", settings_text("GPUEMU_NAME", "Emulated GPU"));
	shared->lost = 0;
	shared->held = 0;
	memset(shared->faults, 0, sizeof shared->faults);
}

// enroll finds or makes this process's entry. The first process alive decides
// how the machine looks. Hold the lock.
static process *enroll(void) {
	process *free_entry = NULL;
	int others = 0, pid = getpid();
	state_reap();
	for (process *p = shared->processes; p < shared->processes + MAX_PROCESSES; p++) {
		if (p->pid == pid)
			return p; // the other library of this process was here first
		if (p->pid)
			others++;
		else if (!free_entry)
			free_entry = p;
	}
	if (!free_entry)
		return NULL;
	if (!others)
		configure();
	memset(free_entry, 0, sizeof *free_entry);
	free_entry->start = start_time(pid);
	free_entry->pid = pid;
	return free_entry;
}

static void attach(void) {
	settings_load();
	char path[512];
	settings_state_path(path, sizeof path);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || flock(fd, LOCK_EX) < 0) {
		fprintf(stderr, "gpuemu: %s: %s\n", path, strerror(errno));
		return;
	}
	struct stat st;
	if (fstat(fd, &st) == 0 && (size_t)st.st_size < sizeof(state) && ftruncate(fd, sizeof(state)) < 0) {
		fprintf(stderr, "gpuemu: %s: %s\n", path, strerror(errno));
		close(fd);
		return;
	}
	void *at = mmap(NULL, sizeof(state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at != MAP_FAILED) {
		shared = at;
		if (shared->magic != MAGIC) {
			new_lock(&shared->lock);
			shared->magic = MAGIC;
		}
		state_lock();
		self = enroll();
		state_unlock();
	}
	flock(fd, LOCK_UN); // closing would not do: the mapping keeps the file open
	close(fd);
	if (!self) {
		fprintf(stderr, "gpuemu: %s: cannot be mapped, or has no room for one more process\n", path);
		shared = NULL;
	}
}

state *state_attach(void) {
	pthread_once(&once, attach);
	return shared;
}

process *state_self(void) { return self; }

// A process that died holding the lock left whole words behind, no lists: what
// it had entered goes with its entry.
void state_lock(void) {
	if (pthread_mutex_lock(&shared->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&shared->lock);
}

void state_unlock(void) { pthread_mutex_unlock(&shared->lock); }

void state_reap(void) {
	int pid = getpid();
	for (process *p = shared->processes; p < shared->processes + MAX_PROCESSES; p++) {
		if (!p->pid || (p == self && p->pid == pid))
			continue;
		if (start_time(p->pid) != p->start)
			memset(p, 0, sizeof *p);
	}
}

uint64_t state_memory(int device) { return device == (int)shared->devices ? shared->mig : shared->memory; }

usage state_usage(const process *p, int device) {
	usage u = p->dev[device];
	if (device == 0 && shared->mig) {
		const usage *instance = &p->dev[shared->devices];
		u.used += instance->used;
		u.requested += instance->requested;
		u.buffers += instance->buffers;
		u.contexts += instance->contexts;
	}
	return u;
}

uint64_t state_used(int device) {
	uint64_t sum = 0;
	for (process *p = shared->processes; p < shared->processes + MAX_PROCESSES; p++)
		if (p->pid)
			sum += state_usage(p, device).used;
	return sum;
}

static int fault_in(fault *list, const char *function) {
	for (fault *f = list; f < list + MAX_FAULTS; f++) {
		uint32_t from = __atomic_load_n(&f->from, __ATOMIC_ACQUIRE);
		if (!from || (strcmp(f->name, "*") && strcmp(f->name, function)))
			continue;
		uint32_t call = __atomic_add_fetch(&f->seen, 1, __ATOMIC_RELAXED);
		if (call >= from && call <= f->to)
			return f->code;
	}
	return 0;
}

int state_enter(const char *function, int lost_code) {
	if (!state_attach())
		return 999;
	settings_delay(function);
	if (settings_lost_now())
		__atomic_store_n(&shared->lost, 1, __ATOMIC_RELEASE);
	int code = fault_in(settings_faults(), function);
	if (!code)
		code = fault_in(shared->faults, function);
	if (!code && __atomic_load_n(&shared->lost, __ATOMIC_ACQUIRE))
		code = lost_code;
	return code;
}
