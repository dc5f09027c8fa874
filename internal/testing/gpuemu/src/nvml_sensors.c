// Sensors of a data-centre card. They follow from the memory in use, so a test
// can tell what they will say: idle without a process, warmer with more memory.
#include "nvml.h"

#include <stddef.h>

static int number(unsigned *to, unsigned v) {
	if (!to)
		return INVALID_ARGUMENT;
	*to = v;
	return SUCCESS;
}

static unsigned percent_used(int i) { return (unsigned)(nvml_used(i) * 100 / state_memory(i)); }
static int busy(int i) { return nvml_used(i) > 0; }

typedef struct {
	unsigned gpu, memory;
} utilization;

EXPORT int nvmlDeviceGetUtilizationRates(nvml_device d, utilization *u) {
	ENTER_GPU();
	if (!u)
		return INVALID_ARGUMENT;
	*u = (utilization){busy(i) ? 50 : 0, percent_used(i)};
	return SUCCESS;
}

static unsigned celsius(int i) { return 35 + percent_used(i) / 2; }

EXPORT int nvmlDeviceGetTemperature(nvml_device d, int sensor, unsigned *out) {
	ENTER_GPU();
	return sensor == 0 ? number(out, celsius(i)) : INVALID_ARGUMENT;
}

EXPORT int nvmlDeviceGetPowerUsage(nvml_device d, unsigned *milliwatts) {
	ENTER_GPU();
	return number(milliwatts, busy(i) ? 120000 + percent_used(i) * 2000 : 55000);
}

EXPORT int nvmlDeviceGetEnforcedPowerLimit(nvml_device d, unsigned *milliwatts) {
	ENTER_GPU();
	(void)i;
	return number(milliwatts, 400000);
}

EXPORT int nvmlDeviceGetPowerManagementLimit(nvml_device d, unsigned *milliwatts) {
	ENTER_GPU();
	(void)i;
	return number(milliwatts, 400000);
}

static const unsigned clocks[2][4] = {{210, 210, 1215, 585}, {1410, 1410, 1215, 1275}}; // idle, busy; MHz

EXPORT int nvmlDeviceGetClockInfo(nvml_device d, unsigned kind, unsigned *mhz) {
	ENTER_GPU();
	return kind < 4 ? number(mhz, clocks[busy(i)][kind]) : INVALID_ARGUMENT;
}

EXPORT int nvmlDeviceGetMaxClockInfo(nvml_device d, unsigned kind, unsigned *mhz) {
	ENTER_GPU();
	(void)i;
	return kind < 4 ? number(mhz, clocks[1][kind]) : INVALID_ARGUMENT;
}

EXPORT int nvmlDeviceGetPerformanceState(nvml_device d, unsigned *pstate) {
	ENTER_GPU();
	return number(pstate, busy(i) ? 0 : 8);
}

EXPORT int nvmlDeviceGetPersistenceMode(nvml_device d, unsigned *on) {
	ENTER_DEVICE();
	(void)i;
	return number(on, 1);
}

EXPORT int nvmlDeviceGetComputeMode(nvml_device d, unsigned *mode) {
	ENTER_DEVICE();
	(void)i;
	return number(mode, 0);
}

EXPORT int nvmlDeviceGetArchitecture(nvml_device d, unsigned *arch) {
	ENTER_DEVICE();
	(void)i;
	return number(arch, 7); // Ampere
}

EXPORT int nvmlDeviceGetCudaComputeCapability(nvml_device d, int *major, int *minor) {
	ENTER_DEVICE();
	(void)i;
	if (!major || !minor)
		return INVALID_ARGUMENT;
	*major = 8;
	*minor = 0;
	return SUCCESS;
}

static int split(int i) { return i == 0 && state_attach()->mig; } // is it in MIG mode?

EXPORT int nvmlDeviceGetMigMode(nvml_device d, unsigned *current, unsigned *pending) {
	ENTER_GPU();
	if (!current || !pending)
		return INVALID_ARGUMENT;
	*current = *pending = (unsigned)split(i);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(nvml_device d, unsigned *count) {
	ENTER_GPU();
	return number(count, 7);
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(nvml_device d, unsigned index, nvml_device *mig) {
	ENTER_GPU();
	if (!mig)
		return INVALID_ARGUMENT;
	if (!split(i) || index)
		return NOT_FOUND;
	*mig = nvml_find((int)state_attach()->devices);
	return SUCCESS;
}

EXPORT int nvmlDeviceIsMigDeviceHandle(nvml_device d, unsigned *is) {
	ENTER_DEVICE();
	return number(is, (unsigned)identity_mig(i));
}

// The card is cooled by its server's fans.
EXPORT int nvmlDeviceGetFanSpeed(nvml_device d, unsigned *percent) {
	ENTER_DEVICE();
	(void)i, (void)percent;
	return NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetFanSpeed_v2(nvml_device d, unsigned fan, unsigned *percent) {
	ENTER_DEVICE();
	(void)i, (void)fan, (void)percent;
	return NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetNumFans(nvml_device d, unsigned *count) {
	ENTER_DEVICE();
	(void)i, (void)count;
	return NOT_SUPPORTED;
}
