// Loaded into a program by LD_PRELOAD: memory for the ring cannot be had.
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

int ftruncate(int file, off_t size) {
	if (size == (1 << 20) + 4096) {
		errno = ENOMEM;
		return -1;
	}
	return (int)syscall(SYS_ftruncate, file, size);
}
