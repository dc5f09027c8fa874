// Prints the registers, the stack and the callers of functions of many kinds on ARM. Each function notes where it returns to:
//
//	stack PC SP X29 BYTES...
//	caller ADDRESS
//
// There is no C library in it: its table is small.
typedef unsigned long word;

static word noted[64], top;
static int depth;
static volatile int sink;

#define ENTER noted[depth++] = (word)__builtin_return_address(0)
#define LEAVE depth--

static long call(long number, long a, long b, long c) {
	register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
	return x0;
}

static void print(const char *text) {
	int n = 0;
	while (text[n])
		n++;
	call(64, 1, (long)text, n);
}

static void hex(word n, int digits) {
	char text[18] = {' '}, *at = text + 1;
	for (int i = digits - 1; i >= 0; i--)
		*at++ = "0123456789abcdef"[n >> 4 * i & 15];
	*at = 0;
	print(digits == 2 ? text + 1 : text);
}

__attribute__((noinline)) static void capture(void) {
	word regs[3];
	ENTER;
	__asm__ volatile("adr x9, .\n\tmov x10, sp\n\tstp x9, x10, [%0]\n\tstr x29, [%0, 16]" ::"r"(regs) : "x9", "x10", "memory");
	print("stack");
	for (int i = 0; i < 3; i++)
		hex(regs[i], 16);
	print(" ");
	for (word at = regs[1]; at < top; at++)
		hex(*(volatile unsigned char *)at, 2);
	print("\n");
	for (int i = depth - 1; i >= 0; i--) {
		print("caller");
		hex(noted[i], 16);
		print("\n");
	}
	LEAVE;
}

__attribute__((noinline)) static int plain(int n) {
	ENTER;
	if (n == 0)
		capture();
	else
		sink += plain(n - 1) * n;
	LEAVE;
	return sink + n;
}

__attribute__((noinline)) static int many(int a, int b, int c, int d, int e, int f, int g, int h, int i, double v, double w) {
	int x = a * b + sink, y = c * d + sink, z = e * f + sink;
	ENTER;
	sink += plain(1 + (g & 1));
	LEAVE;
	sink += (int)(v * w + v / w);
	return x + y + z + a + b + c + d + e + f + g + h + i + sink;
}

__attribute__((noinline)) static int sized(int n) {
	volatile char *p = __builtin_alloca((word)n);
	ENTER;
	p[n / 2] = 1;
	sink += plain(0);
	LEAVE;
	return p[n / 2] + sink;
}

__attribute__((noinline)) static int aligned(int n) {
	_Alignas(64) volatile char p[64];
	ENTER;
	p[n] = 1;
	sink += plain(0);
	LEAVE;
	return p[n] + sink;
}

__attribute__((noinline)) static int large(int n) {
	volatile char p[600];
	ENTER;
	p[n] = 1;
	sink += plain(0);
	LEAVE;
	return p[n] + sink;
}

__attribute__((noinline, optimize("no-omit-frame-pointer"))) static int framed(int n) {
	ENTER;
	sink += sized(n);
	LEAVE;
	return sink + n;
}

// seldom keeps nothing on the stack on its short way.
__attribute__((noinline)) static int seldom(int n, int (*then)(int)) {
	if (n < 0)
		return 1;
	ENTER;
	sink += then(n) + then(n / 2);
	LEAVE;
	return sink * n;
}

// last is called where no code follows.
__attribute__((noinline, noreturn)) static void last(void) {
	ENTER;
	sink += plain(0);
	call(93, 0, 0, 0);
	__builtin_unreachable();
}

__attribute__((noinline, noreturn)) static void ends(void) {
	ENTER;
	last();
}

__attribute__((used)) static void begin(word from) {
	top = from;
	ENTER;
	plain(3);
	sink += many(1, 2, 3, 4, 5, 6, 7, 8, 9, 1.5, 2.5);
	sink += aligned(5);
	sink += large(5);
	sink += seldom(100, framed);
	ends();
}

__asm__(".globl _start\n_start:\n\t.cfi_startproc\n\t.cfi_undefined x30\n\tmov x29, 0\n\tmov x30, 0\n\tmov x0, sp\n\tbl begin\n\tbrk 1\n\t.cfi_endproc");
