#define _GNU_SOURCE
#include "settings.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

static fault faults[MAX_FAULTS];
static struct {
	char name[48];
	long long ns;
} delays[MAX_FAULTS];
static int delay_count;
static uint32_t lost_from, calls;

const char *settings_text(const char *variable, const char *otherwise) {
	const char *v = getenv(variable);
	return v && *v ? v : otherwise;
}

static void bad(const char *variable, const char *item) {
	fprintf(stderr, "gpuemu: %s: cannot read %s\n", variable, item);
}

uint64_t settings_number(const char *variable, uint64_t otherwise) {
	const char *v = settings_text(variable, NULL);
	if (!v)
		return otherwise;
	char *end;
	uint64_t n = strtoull(v, &end, 10);
	if (isdigit((unsigned char)*v) && !*end)
		return n;
	bad(variable, v);
	return otherwise;
}

uint64_t settings_bytes(const char *variable, uint64_t otherwise) {
	static const struct {
		const char *name;
		int shift;
	} units[] = {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
	const char *v = settings_text(variable, NULL);
	if (!v)
		return otherwise;
	char *unit;
	uint64_t n = strtoull(v, &unit, 10);
	for (size_t i = 0; i < sizeof units / sizeof *units; i++)
		if (isdigit((unsigned char)*v) && !strcmp(unit, units[i].name))
			return n << units[i].shift;
	bad(variable, v);
	return otherwise;
}

// settings_state_path gives the file of the shared state; %p in it stands for
// this process's id: a machine of its own for each process.
void settings_state_path(char *path, size_t n) {
	const char *v = settings_text("GPUEMU_STATE", NULL);
	if (!v) {
		const char *dir = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : settings_text("TMPDIR", "/tmp");
		snprintf(path, n, "%s/gpuemu-%u", dir, (unsigned)getuid());
		return;
	}
	const char *mark = strstr(v, "%p");
	if (mark)
		snprintf(path, n, "%.*s%d%s", (int)(mark - v), v, (int)getpid(), mark + 2);
	else
		snprintf(path, n, "%s", v);
}

// function:n:code, or function:n+:code for the n-th call and all after it.
static void load_faults(char *text) {
	int n = 0;
	for (char *save, *item = strtok_r(text, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
		char name[48], plus = 0;
		unsigned from;
		int code;
		if (sscanf(item, "%47[^:]:%u:%d", name, &from, &code) != 3 &&
		    (sscanf(item, "%47[^:]:%u%c:%d", name, &from, &plus, &code) != 4 || plus != '+')) {
			bad("GPUEMU_FAIL", item);
			continue;
		}
		if (n == MAX_FAULTS || from == 0) {
			bad("GPUEMU_FAIL", item);
			continue;
		}
		fault *f = &faults[n++];
		strcpy(f->name, name);
		f->from = from;
		f->to = plus ? UINT32_MAX : from;
		f->code = code;
	}
}

static long long nanoseconds(const char *text) {
	char *unit;
	double n = strtod(text, &unit);
	if (!strcmp(unit, "ns")) return (long long)n;
	if (!strcmp(unit, "us") || !strcmp(unit, "\xc2\xb5s")) return (long long)(n * 1e3);
	if (!strcmp(unit, "ms")) return (long long)(n * 1e6);
	if (!strcmp(unit, "s")) return (long long)(n * 1e9);
	return -1;
}

// duration for every call, or function:duration.
static void load_delays(char *text) {
	for (char *save, *item = strtok_r(text, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
		char *colon = strchr(item, ':');
		long long ns = nanoseconds(colon ? colon + 1 : item);
		if (ns < 0 || delay_count == MAX_FAULTS) {
			bad("GPUEMU_LATENCY", item);
			continue;
		}
		if (colon)
			*colon = 0;
		snprintf(delays[delay_count].name, sizeof delays[0].name, "%s", colon ? item : "*");
		delays[delay_count++].ns = ns;
	}
}

void settings_load(void) {
	char *text = strdup(settings_text("GPUEMU_FAIL", ""));
	load_faults(text);
	free(text);
	text = strdup(settings_text("GPUEMU_LATENCY", ""));
	load_delays(text);
	free(text);
	lost_from = (uint32_t)settings_number("GPUEMU_LOST", 0);
}

fault *settings_faults(void) { return faults; }

void settings_delay(const char *function) {
	for (int i = 0; i < delay_count; i++) {
		if (strcmp(delays[i].name, "*") && strcmp(delays[i].name, function))
			continue;
		struct timespec t = {delays[i].ns / 1000000000, delays[i].ns % 1000000000};
		nanosleep(&t, NULL);
	}
}

int settings_lost_now(void) {
	return lost_from && __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) >= lost_from;
}
