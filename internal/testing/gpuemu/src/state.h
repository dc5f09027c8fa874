// What the emulated driver's two libraries share: the machine's GPUs, who uses
// them and how much, kept in one mapped file that every process maps too.
#ifndef GPUEMU_STATE_H
#define GPUEMU_STATE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum {
	MAX_DEVICES = 8,
	MAX_FAULTS = 16,
	MAX_PROCESSES = 256,
};

#define PAGE_BYTES ((uint64_t)2 << 20)

// A fault makes calls number from..to (the first is 1) of a function fail with
// code. from 0 is an empty entry. The name "*" stands for any function.
typedef struct {
	char name[48];
	uint32_t from, to;
	int32_t code;
	uint32_t seen;
} fault;

typedef struct {
	uint64_t used;      // device memory held, in whole pages, contexts included
	uint64_t requested; // what the callers asked for
	uint32_t buffers;   // live allocations
	uint32_t contexts;
} usage;

typedef struct {
	int32_t pid; // 0: free entry
	uint32_t events; // made and not destroyed
	uint64_t start; // of the process, so that a reused pid is another process
	usage dev[MAX_DEVICES]; // the MIG instance follows the machine's devices
} process;

// The Go side (control.go) reads and writes everything before lock by offset.
typedef struct {
	uint32_t magic, devices;
	uint32_t lost, held; // the clock is moved by hand
	uint64_t memory;   // usable bytes of each device
	uint64_t reserved; // the driver's own share, beside memory
	uint64_t context;  // what one context takes
	uint64_t mig;      // usable bytes of the first device's MIG instance; 0: it has none
	char name[80];
	fault faults[MAX_FAULTS];
	process processes[MAX_PROCESSES];
	uint64_t base, advanced; // the time of a clock that is held, ns: their sum
	pthread_mutex_t lock;
} state;

_Static_assert(offsetof(state, faults) == 128, "control.go");
_Static_assert(sizeof(fault) == 64, "control.go");
_Static_assert(offsetof(state, processes) == 128 + 64 * MAX_FAULTS, "control.go");
_Static_assert(offsetof(state, base) == offsetof(state, processes) + sizeof(process) * MAX_PROCESSES, "control.go");
_Static_assert(sizeof(process) == 16 + 24 * MAX_DEVICES, "control.go");

// state_attach maps the state and enters this process in it, once. It gives
// NULL, and says why on stderr, when that cannot be done.
state *state_attach(void);

// state_self is this process's entry. Call state_attach first.
process *state_self(void);

void state_lock(void);
void state_unlock(void);

// state_reap drops the entries of processes that have died. Hold the lock.
void state_reap(void);

// state_memory gives the usable bytes of a device, or of the MIG instance.
uint64_t state_memory(int device);

// state_usage is what a process holds of a device, its MIG instance included.
usage state_usage(const process *p, int device);

// state_used adds that up for all processes. Hold the lock.
uint64_t state_used(int device);

// state_enter is the first thing in every call: the latency asked for, then
// the fault asked for. It gives 0, the fault's code, or lost_code for a lost device.
int state_enter(const char *function, int lost_code);

#endif
