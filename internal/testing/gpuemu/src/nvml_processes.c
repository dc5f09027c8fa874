// Who uses a device, as GPUEMU_PROCESSES lets this process see it: all of it,
// as host pids (what a container gets to see), without sizes (WSL), or hidden.
#include "nvml.h"

#include <string.h>

typedef struct {
	unsigned pid;
	unsigned long long used;
} process_v1;

typedef struct {
	unsigned pid;
	unsigned long long used;
	unsigned instance, compute_instance;
} process_v3;

enum { HOST_PIDS = 1000000 };

static int sees(const char *how) { return !strcmp(settings_text("GPUEMU_PROCESSES", ""), how); }

// collect fills at most room entries, and gives how many there are.
static unsigned collect(int device, process_v3 *to, unsigned room) {
	unsigned n = 0;
	if (sees("hidden"))
		return 0;
	state_lock();
	state_reap();
	process *all = state_attach()->processes;
	for (process *p = all; p < all + MAX_PROCESSES; p++) {
		usage u = state_usage(p, device);
		if (!p->pid || !u.contexts)
			continue;
		if (n < room) {
			unsigned pid = (unsigned)p->pid + (sees("host") ? HOST_PIDS : 0);
			uint64_t used = sees("unsized") ? UINT64_MAX : u.used;
			to[n] = (process_v3){pid, used, UINT32_MAX, UINT32_MAX};
		}
		n++;
	}
	state_unlock();
	return n;
}

static int list(int device, unsigned *count, process_v1 *v1, process_v3 *v3) {
	process_v3 all[MAX_PROCESSES];
	if (!count || (*count && !v1 && !v3))
		return INVALID_ARGUMENT;
	unsigned room = *count, n = collect(device, all, MAX_PROCESSES);
	*count = n;
	if (n > room)
		return INSUFFICIENT_SIZE;
	for (unsigned k = 0; k < n; k++) {
		if (v1)
			v1[k] = (process_v1){all[k].pid, all[k].used};
		else
			v3[k] = all[k];
	}
	return SUCCESS;
}

static int none(unsigned *count) {
	if (!count)
		return INVALID_ARGUMENT;
	*count = 0;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses(nvml_device d, unsigned *count, process_v1 *infos) {
	ENTER_DEVICE();
	return list(i, count, infos, NULL);
}

typedef struct {
	unsigned pid;
	unsigned long long time;
	unsigned sm, memory, encoder, decoder;
} process_use;

// Each process that has a context keeps the device busy to 40 percent.
EXPORT int nvmlDeviceGetProcessUtilization(nvml_device d, process_use *to, unsigned *count, unsigned long long since) {
	process_v3 all[MAX_PROCESSES];
	ENTER_GPU();
	if (!count || (*count && !to))
		return INVALID_ARGUMENT;
	unsigned room = *count, n = collect(i, all, MAX_PROCESSES);
	*count = n;
	if (n == 0)
		return NOT_FOUND;
	if (n > room)
		return INSUFFICIENT_SIZE;
	for (unsigned k = 0; k < n; k++)
		to[k] = (process_use){.pid = all[k].pid, .time = since + 1, .sm = 40};
	return SUCCESS;
}

#define NONE(function, type)                                                \
	EXPORT int function(nvml_device d, unsigned *count, type *infos) {  \
		ENTER_DEVICE();                                             \
		(void)i, (void)infos;                                       \
		return none(count);                                         \
	}

NONE(nvmlDeviceGetGraphicsRunningProcesses, process_v1)
NONE(nvmlDeviceGetMPSComputeRunningProcesses, process_v1)

#ifndef GPUEMU_OLD
EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(nvml_device d, unsigned *count, process_v3 *infos) {
	ENTER_DEVICE();
	return list(i, count, NULL, infos);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(nvml_device d, unsigned *count, process_v3 *infos) {
	ENTER_DEVICE();
	return list(i, count, NULL, infos);
}

NONE(nvmlDeviceGetGraphicsRunningProcesses_v2, process_v3)
NONE(nvmlDeviceGetGraphicsRunningProcesses_v3, process_v3)
NONE(nvmlDeviceGetMPSComputeRunningProcesses_v2, process_v3)
NONE(nvmlDeviceGetMPSComputeRunningProcesses_v3, process_v3)
#endif
