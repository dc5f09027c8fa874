// The parts of the emulated libnvidia-ml.so.1, declared by this project: types
// as wide as the library's, and its numbers for errors.
#ifndef GPUEMU_NVML_H
#define GPUEMU_NVML_H

#include "identity.h"
#include "settings.h"
#include "state.h"

enum {
	SUCCESS = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	NO_PERMISSION = 4,
	NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7,
	DRIVER_NOT_LOADED = 9,
	LOST = 15,
	VERSION_MISMATCH = 25,
};

struct nvml_device {
	char unused;
};
typedef struct nvml_device *nvml_device;

typedef struct {
	char legacy_id[16];
	unsigned domain, bus, device, device_id, subsystem_id;
	char id[32];
} nvml_pci;

#define ENTER()                                         \
	do {                                            \
		if (!nvml_ready())                      \
			return UNINITIALIZED;           \
		int code_ = state_enter(__func__, LOST); \
		if (code_)                              \
			return code_;                   \
	} while (0)

// ENTER_DEVICE declares i, the index of d.
#define ENTER_DEVICE()                                  \
	ENTER();                                        \
	int i = nvml_index(d);                          \
	if (i < 0)                                      \
	return INVALID_ARGUMENT

// ENTER_GPU is ENTER_DEVICE for what is not measured of a MIG instance.
#define ENTER_GPU()           \
	ENTER_DEVICE();       \
	if (identity_mig(i)) \
	return NOT_SUPPORTED

int nvml_ready(void);
nvml_device nvml_find(int index);
int nvml_index(nvml_device d); // -1 for a handle that is none
uint64_t nvml_used(int index); // by all processes, bytes

#endif
