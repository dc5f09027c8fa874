#include <pthread.h>

#include "_cgo_export.h"

void callback_call(void *handle) { callbackRun(handle); }

static void *run(void *handle) {
	callbackRun(handle);
	return 0;
}

int callback_thread(void *handle) {
	pthread_t thread;
	int rc = pthread_create(&thread, 0, run, handle);
	return rc != 0 ? rc : pthread_join(thread, 0);
}
