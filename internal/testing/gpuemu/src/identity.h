// What both libraries must say alike of a device.
#ifndef GPUEMU_IDENTITY_H
#define GPUEMU_IDENTITY_H

#include <stdio.h>
#include <string.h>

#include "state.h"

#define IDENTITY_CUDA 12020
#define IDENTITY_DRIVER "535.00 (gpuemu)"

static inline void identity_uuid(int device, unsigned char uuid[16]) {
	static const unsigned char first[16] = {0xe3, 0xa1, 0, 0, 0, 0, 0x40, 0, 0x80};
	memcpy(uuid, first, 16);
	uuid[15] = (unsigned char)device;
}

// identity_mig says whether a device is a MIG instance.
static inline int identity_mig(int device) { return state_attach()->mig && device == (int)state_attach()->devices; }

static inline void identity_text(int device, char text[48]) {
	unsigned char u[16];
	identity_uuid(device, u);
	snprintf(text, 48, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", identity_mig(device) ? "MIG" : "GPU", u[0], u[1], u[2], u[3], u[4],
		u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

static inline int identity_bus(int device) { return identity_mig(device) ? 1 : device + 1; }

static inline void identity_name(int device, char name[112]) {
	state *s = state_attach();
	if (identity_mig(device))
		snprintf(name, 112, "%s MIG 1g.%llugb", s->name, (unsigned long long)((s->mig + (1 << 30) - 1) >> 30));
	else
		snprintf(name, 112, "%s", s->name);
}

#endif
