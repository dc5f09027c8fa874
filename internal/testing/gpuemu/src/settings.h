// What this process was told by GPUEMU_ environment variables; doc.go has the table.
#ifndef GPUEMU_SETTINGS_H
#define GPUEMU_SETTINGS_H

#include "state.h"

void settings_load(void); // once, before anything below

uint64_t settings_number(const char *variable, uint64_t otherwise);
uint64_t settings_bytes(const char *variable, uint64_t otherwise); // 24GiB, 512MiB, 4096
const char *settings_text(const char *variable, const char *otherwise);
void settings_state_path(char *path, size_t n);

fault *settings_faults(void); // MAX_FAULTS of them
void settings_delay(const char *function);
int settings_lost_now(void); // counts the call

#endif
