// The emulated libnvidia-ml.so.1: sessions, devices and memory. What follows
// from memory in use alone is in nvml_sensors.c. With GPUEMU_OLD it has only the
// symbols of a driver of 2020 (R450): no memory info v2, no process lists v2 and v3.
#include "nvml.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static int sessions;

int nvml_ready(void) { return __atomic_load_n(&sessions, __ATOMIC_ACQUIRE) > 0; }

// places is the number of devices, with the MIG instance.
static int places(void) { return (int)state_attach()->devices + (state_attach()->mig ? 1 : 0); }

nvml_device nvml_find(int i) {
	static struct nvml_device all[MAX_DEVICES];
	return i < 0 || i >= places() ? NULL : &all[i];
}

int nvml_index(nvml_device d) {
	for (int i = 0; i < places(); i++)
		if (nvml_find(i) == d)
			return i;
	return -1;
}

static int init(const char *function) {
	int code = state_enter(function, LOST);
	if (code)
		return code;
	if (!state_attach()->devices)
		return DRIVER_NOT_LOADED;
	__atomic_add_fetch(&sessions, 1, __ATOMIC_ACQ_REL);
	return SUCCESS;
}

EXPORT int nvmlInit(void) { return init(__func__); }
EXPORT int nvmlInit_v2(void) { return init(__func__); }

EXPORT int nvmlInitWithFlags(unsigned flags) {
	(void)flags;
	return init(__func__);
}

EXPORT int nvmlShutdown(void) {
	ENTER();
	__atomic_sub_fetch(&sessions, 1, __ATOMIC_ACQ_REL);
	return SUCCESS;
}

EXPORT const char *nvmlErrorString(int code) {
	switch (code) {
	case SUCCESS: return "Success";
	case UNINITIALIZED: return "Uninitialized";
	case INVALID_ARGUMENT: return "Invalid Argument";
	case NOT_SUPPORTED: return "Not Supported";
	case NO_PERMISSION: return "Insufficient Permissions";
	case NOT_FOUND: return "Not Found";
	case INSUFFICIENT_SIZE: return "Insufficient Size";
	case DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case LOST: return "GPU is lost";
	case VERSION_MISMATCH: return "Argument version mismatch";
	default: return "Unknown Error";
	}
}

static int put(char *to, unsigned n, const char *text) {
	if (!to)
		return INVALID_ARGUMENT;
	if (strlen(text) >= n)
		return INSUFFICIENT_SIZE;
	strcpy(to, text);
	return SUCCESS;
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned n) {
	ENTER();
	return put(version, n, IDENTITY_DRIVER);
}

EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned n) {
	ENTER();
	return put(version, n, "12." IDENTITY_DRIVER);
}

static int cuda_version(int *version) {
	if (!version)
		return INVALID_ARGUMENT;
	*version = IDENTITY_CUDA;
	return SUCCESS;
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *version) {
	ENTER();
	return cuda_version(version);
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
	ENTER();
	return cuda_version(version);
}

EXPORT int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned n) {
	ENTER();
	char path[64], text[1024] = "";
	snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
	FILE *f = fopen(path, "r");
	if (!f)
		return NOT_FOUND;
	size_t got = fread(text, 1, sizeof text - 1, f);
	fclose(f);
	return got ? put(name, n, text) : NOT_FOUND;
}

static int count(unsigned *n) {
	if (!n)
		return INVALID_ARGUMENT;
	*n = state_attach()->devices;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetCount(unsigned *n) {
	ENTER();
	return count(n);
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *n) {
	ENTER();
	return count(n);
}

static int by_index(unsigned i, nvml_device *d) {
	if (!d || i >= state_attach()->devices)
		return INVALID_ARGUMENT;
	*d = nvml_find((int)i);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex(unsigned i, nvml_device *d) {
	ENTER();
	return by_index(i, d);
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned i, nvml_device *d) {
	ENTER();
	return by_index(i, d);
}

static void bus_text(int i, char text[32]) { snprintf(text, 32, "00000000:%02X:00.0", identity_bus(i)); }

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, nvml_device *d) {
	ENTER();
	char text[48];
	for (int i = 0; uuid && d && i < places(); i++) {
		identity_text(i, text);
		if (!strcmp(text, uuid))
			return *d = nvml_find(i), SUCCESS;
	}
	return uuid && d ? NOT_FOUND : INVALID_ARGUMENT;
}

// by_bus takes the domain in eight digits, in four, or left out.
static int by_bus(const char *bus, nvml_device *d) {
	char text[32];
	for (int i = 0; bus && d && i < (int)state_attach()->devices; i++) {
		bus_text(i, text);
		if (!strcasecmp(text, bus) || !strcasecmp(text + 4, bus) || !strcasecmp(text + 9, bus))
			return *d = nvml_find(i), SUCCESS;
	}
	return bus && d ? NOT_FOUND : INVALID_ARGUMENT;
}

EXPORT int nvmlDeviceGetHandleByPciBusId(const char *bus, nvml_device *d) {
	ENTER();
	return by_bus(bus, d);
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvml_device *d) {
	ENTER();
	return by_bus(bus, d);
}

EXPORT int nvmlDeviceGetName(nvml_device d, char *name, unsigned n) {
	ENTER_DEVICE();
	char text[112];
	identity_name(i, text);
	return put(name, n, text);
}

EXPORT int nvmlDeviceGetUUID(nvml_device d, char *uuid, unsigned n) {
	ENTER_DEVICE();
	char text[48];
	identity_text(i, text);
	return put(uuid, n, text);
}

EXPORT int nvmlDeviceGetSerial(nvml_device d, char *serial, unsigned n) {
	ENTER_DEVICE();
	(void)i, (void)serial, (void)n;
	return NOT_SUPPORTED;
}

static int number(unsigned *to, unsigned v) {
	if (!to)
		return INVALID_ARGUMENT;
	*to = v;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetIndex(nvml_device d, unsigned *index) {
	ENTER_DEVICE();
	return number(index, (unsigned)i);
}

EXPORT int nvmlDeviceGetMinorNumber(nvml_device d, unsigned *minor) {
	ENTER_DEVICE();
	return number(minor, (unsigned)i);
}

static int pci(int i, nvml_pci *p) {
	if (!p)
		return INVALID_ARGUMENT;
	memset(p, 0, sizeof *p);
	p->bus = (unsigned)identity_bus(i);
	p->device_id = 0x20b010de; // the vendor NVIDIA in the low half
	bus_text(i, p->id);
	snprintf(p->legacy_id, sizeof p->legacy_id, "0000:%02X:00.0", p->bus);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetPciInfo_v2(nvml_device d, nvml_pci *p) {
	ENTER_DEVICE();
	return pci(i, p);
}

EXPORT int nvmlDeviceGetPciInfo_v3(nvml_device d, nvml_pci *p) {
	ENTER_DEVICE();
	return pci(i, p);
}

uint64_t nvml_used(int i) {
	state_lock();
	state_reap();
	uint64_t used = state_used(i);
	state_unlock();
	return used;
}

// memory_info is "v1" where only the first version answers, "none" where neither does.
static int without(const char *kind) { return !strcmp(settings_text("GPUEMU_MEMORY_INFO", ""), kind); }

// A MIG instance has no share of the driver's in it.
static uint64_t reserved(int i) { return identity_mig(i) ? 0 : state_attach()->reserved; }

typedef struct {
	unsigned long long total, free, used;
} memory_v1;

// Version 1 counts the driver's own share as used.
EXPORT int nvmlDeviceGetMemoryInfo(nvml_device d, memory_v1 *m) {
	ENTER_DEVICE();
	if (!m)
		return INVALID_ARGUMENT;
	if (without("none"))
		return NOT_SUPPORTED;
	m->total = state_memory(i) + reserved(i);
	m->used = nvml_used(i) + reserved(i);
	m->free = m->total - m->used;
	return SUCCESS;
}

#ifndef GPUEMU_OLD
typedef struct {
	unsigned version;
	unsigned long long total, reserved, free, used;
} memory_v2;

EXPORT int nvmlDeviceGetMemoryInfo_v2(nvml_device d, memory_v2 *m) {
	ENTER_DEVICE();
	if (!m)
		return INVALID_ARGUMENT;
	if (m->version != (sizeof *m | 2 << 24))
		return VERSION_MISMATCH;
	if (without("none") || without("v1"))
		return NOT_SUPPORTED;
	m->total = state_memory(i) + reserved(i);
	m->reserved = reserved(i);
	m->used = nvml_used(i);
	m->free = state_memory(i) - m->used;
	return SUCCESS;
}
#endif
