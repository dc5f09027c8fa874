#define _GNU_SOURCE
// Initialisation and devices.
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "identity.h"

int driver_ready;

// The devices that CUDA_VISIBLE_DEVICES leaves, in its order: a CUdevice is an index here.
static int visible[MAX_DEVICES], visible_count;

int device_valid(CUdevice d) { return d >= 0 && d < visible_count; }
int device_physical(CUdevice d) { return visible[d]; }

// instance gives what CUDA uses of a device: a GPU that is in MIG mode stands for its instance.
static int instance(int d) { return d == 0 && state_attach()->mig ? (int)state_attach()->devices : d; }

// named gives the device that an entry of the list names, by its index or by the
// beginning of its UUID; -1 for none.
static int named(const char *entry) {
	int devices = (int)state_attach()->devices;
	char *end;
	long i = strtol(entry, &end, 10);
	if (*entry && !*end)
		return i >= 0 && i < devices ? instance((int)i) : -1;
	for (int d = 0; d < devices + (state_attach()->mig ? 1 : 0); d++) {
		char text[48];
		identity_text(d, text);
		if (strlen(entry) > 4 && !strncmp(entry, text, strlen(entry)))
			return instance(d);
	}
	return -1;
}

// alone leaves a MIG instance that is visible, and nothing beside it: a process uses one.
static void alone(void) {
	for (int i = 0; i < visible_count; i++) {
		if (identity_mig(visible[i])) {
			visible[0] = visible[i];
			visible_count = 1;
		}
	}
}

// read_list reads the variable. What follows an entry that names no device is not seen, and
// of a list that names one twice nothing is.
static void read_list(void) {
	visible_count = 0;
	const char *set = getenv("CUDA_VISIBLE_DEVICES");
	if (!set) {
		for (int d = 0; d < (int)state_attach()->devices; d++)
			visible[visible_count++] = instance(d);
		return;
	}
	char *list = strdup(set), *rest = list;
	for (char *entry = strsep(&rest, ","); entry; entry = strsep(&rest, ",")) {
		int d = named(entry);
		if (d < 0)
			break;
		for (int i = 0; i < visible_count; i++) {
			if (visible[i] == d) {
				visible_count = 0;
				free(list);
				return;
			}
		}
		visible[visible_count++] = d;
	}
	free(list);
}

EXPORT CUresult cuInit(unsigned flags) {
	int code = state_enter(__func__, NO_DEVICE);
	if (code)
		return code;
	if (flags)
		return INVALID_VALUE;
	if (!driver_ready) {
		read_list();
		alone();
	}
	if (!visible_count)
		return NO_DEVICE;
	driver_ready = 1;
	return SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version) {
	if (!version)
		return INVALID_VALUE;
	*version = IDENTITY_CUDA;
	return SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
	ENTER();
	if (!count)
		return INVALID_VALUE;
	*count = visible_count;
	return SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
	ENTER();
	if (!device)
		return INVALID_VALUE;
	if (!device_valid(ordinal))
		return INVALID_DEVICE;
	*device = ordinal;
	return SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice d) {
	ENTER();
	if (!name || length <= 0)
		return INVALID_VALUE;
	if (!device_valid(d))
		return INVALID_DEVICE;
	char text[112];
	identity_name(device_physical(d), text);
	snprintf(name, (size_t)length, "%s", text);
	return SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(unsigned char uuid[16], CUdevice d) {
	ENTER();
	if (!uuid)
		return INVALID_VALUE;
	if (!device_valid(d))
		return INVALID_DEVICE;
	int physical = device_physical(d);
	identity_uuid(identity_mig(physical) ? 0 : physical, uuid); // the whole GPU's
	return SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(unsigned char uuid[16], CUdevice d) {
	ENTER();
	if (!uuid)
		return INVALID_VALUE;
	if (!device_valid(d))
		return INVALID_DEVICE;
	identity_uuid(device_physical(d), uuid);
	return SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice d) {
	ENTER();
	if (!id || length <= 0)
		return INVALID_VALUE;
	if (!device_valid(d))
		return INVALID_DEVICE;
	snprintf(id, (size_t)length, "0000:%02x:00.0", (unsigned)identity_bus(device_physical(d)));
	return SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice d) {
	ENTER();
	if (!bytes)
		return INVALID_VALUE;
	if (!device_valid(d))
		return INVALID_DEVICE;
	*bytes = state_memory(device_physical(d));
	return SUCCESS;
}

// The attributes that programs ask for before they start; the numbers of the
// keys are the driver's.
static const struct {
	int key, value;
} attributes[] = {
	{1, 1024},        // threads a block
	{2, 1024},        // block, x y z
	{3, 1024},
	{4, 64},
	{5, 2147483647},  // grid, x y z
	{6, 65535},
	{7, 65535},
	{8, 49152},       // shared memory a block
	{10, 32},         // warp
	{11, 2147483647}, // pitch
	{12, 65536},      // registers a block
	{13, 1410000},    // clock, kHz
	{14, 512},        // texture alignment
	{16, 108},        // multiprocessors
	{17, 0},          // run time limit on kernels
	{18, 0},          // integrated
	{19, 1},          // can map host memory
	{20, 0},          // compute mode: default
	{31, 1},          // concurrent kernels
	{32, 0},          // ECC
	{36, 1215000},    // memory clock, kHz
	{37, 5120},       // bus width
	{39, 2048},       // threads a multiprocessor
	{40, 3},          // copy engines
	{41, 1},          // unified addressing
	{50, 0},          // PCI domain
	{34, 0},          // PCI device
	{75, 8},          // compute capability 8.0
	{76, 0},
	{78, 1},          // stream priorities
	{83, 1},          // managed memory
	{88, 1},          // pageable memory access
	{89, 1},          // concurrent managed access
	{115, 1},         // memory pools
};

EXPORT CUresult cuDeviceGetAttribute(int *value, int key, CUdevice d) {
	ENTER();
	if (!value)
		return INVALID_VALUE;
	if (!device_valid(d))
		return INVALID_DEVICE;
	if (key == 33) { // PCI bus
		*value = identity_bus(device_physical(d));
		return SUCCESS;
	}
	for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
		if (attributes[i].key == key) {
			*value = attributes[i].value;
			return SUCCESS;
		}
	}
	fprintf(stderr, "gpuemu: cuDeviceGetAttribute: attribute %d is not emulated\n", key);
	return INVALID_VALUE;
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice d) {
	CUresult r = cuDeviceGetAttribute(major, 75, d);
	return r ? r : cuDeviceGetAttribute(minor, 76, d);
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice d, CUdevice peer) {
	ENTER();
	if (!can)
		return INVALID_VALUE;
	if (!device_valid(d) || !device_valid(peer))
		return INVALID_DEVICE;
	*can = 0;
	return SUCCESS;
}

static const struct {
	int code;
	const char *name, *text;
} errors[] = {
	{SUCCESS, "CUDA_SUCCESS", "no error"},
	{INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE", "device is busy or unavailable"},
	{NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
	{CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
	{NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
	{UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

EXPORT CUresult cuGetErrorName(CUresult code, const char **name) {
	for (size_t i = 0; name && i < sizeof errors / sizeof *errors; i++)
		if (errors[i].code == code)
			return *name = errors[i].name, SUCCESS;
	return INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult code, const char **text) {
	for (size_t i = 0; text && i < sizeof errors / sizeof *errors; i++)
		if (errors[i].code == code)
			return *text = errors[i].text, SUCCESS;
	return INVALID_VALUE;
}
