// Prints the registers, the stack and the callers of functions of many kinds, as the C library's own
// unwinder finds them:
//
//	map FROM TO OFFSET FILE
//	stack PC SP  BP BX R12 R13 R14 R15  BYTES...
//	caller ADDRESS
//	done
#define _GNU_SOURCE
#include <alloca.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t word;

static uintptr_t top(void) {
	pthread_attr_t a;
	void *base;
	size_t size;
	pthread_getattr_np(pthread_self(), &a);
	pthread_attr_getstack(&a, &base, &size);
	pthread_attr_destroy(&a);
	return (uintptr_t)base + size;
}

__attribute__((noinline)) static void capture(void) {
	static word regs[8];
	__asm__ volatile("lea 0f(%%rip), %%rax\n0:\n\tmov %%rax, 0(%0)\n\tmov %%rsp, 8(%0)\n\tmov %%rbp, 16(%0)\n\tmov %%rbx, 24(%0)\n\t"
			 "mov %%r12, 32(%0)\n\tmov %%r13, 40(%0)\n\tmov %%r14, 48(%0)\n\tmov %%r15, 56(%0)"
			 :: "r"(regs) : "rax", "memory");
	printf("stack");
	for (int i = 0; i < 8; i++)
		printf(" %lx", regs[i]);
	static unsigned char copy[1 << 16];
	size_t n = top() - regs[1];
	if (n > sizeof copy)
		n = sizeof copy;
	memcpy(copy, (void *)regs[1], n);
	putchar(' ');
	for (size_t i = 0; i < n; i++)
		printf("%02x", copy[i]);
	putchar('\n');
	void *callers[64];
	int count = backtrace(callers, 64);
	for (int i = 1; i < count; i++) // the first is in here
		printf("caller %lx\n", (word)callers[i]);
	printf("done\n");
}

static volatile int sink;

__attribute__((noinline)) static int plain(int n) {
	if (n == 0)
		capture();
	else
		sink += plain(n - 1) * n;
	return sink + n;
}

__attribute__((noinline)) static int many(int a, int b, int c, int d, int e, int f, int g) {
	int x = a * b, y = c * d, z = e * f;
	sink += plain(1 + (g & 1));
	return x + y + z + a + b + c + d + e + f + g + sink;
}

__attribute__((noinline)) static int sized(int n) {
	char *p = alloca((size_t)n);
	memset(p, n, (size_t)n);
	sink += plain(1);
	return p[n / 2] + sink;
}

__attribute__((noinline)) static int aligned(int n) {
	_Alignas(64) volatile char p[128];
	p[n] = 1;
	sink += plain(1);
	return p[n] + sink;
}

__attribute__((noinline, optimize("no-omit-frame-pointer"))) static int framed(int n) {
	sink += sized(n);
	return sink + n;
}

static int compared;

static int compare(const void *a, const void *b) {
	if (!compared++)
		plain(2);
	return *(const int *)a - *(const int *)b;
}

static void on_signal(int n) {
	(void)n;
	plain(1);
	sink++;
}

static void *thread(void *a) {
	sink += aligned(3);
	return a;
}

// list_code prints where the code of each file lies: map FROM TO OFFSET FILE.
static void list_code(void) {
	char line[4096], may[8], file[4096];
	unsigned long from, to, offset;
	FILE *f = fopen("/proc/self/maps", "r");
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "%lx-%lx %7s %lx %*s %*s %4095s", &from, &to, may, &offset, file) == 5 && may[2] == 'x' && file[0] == '/')
			printf("map %lx %lx %lx %s\n", from, to, offset, file);
	if (f)
		fclose(f);
}

int main(void) {
	list_code();
	plain(0);
	plain(9);
	sink += many(1, 2, 3, 4, 5, 6, 7);
	sink += sized(1000);
	sink += aligned(5);
	sink += framed(100);
	int list[] = {3, 1, 2};
	qsort(list, 3, sizeof *list, compare);
	signal(SIGUSR1, on_signal);
	raise(SIGUSR1);
	pthread_t t;
	pthread_create(&t, NULL, thread, NULL);
	pthread_join(t, NULL);
	return sink == 0;
}
