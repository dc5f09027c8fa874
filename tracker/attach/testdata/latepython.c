// Allocates, loads the library of Python that its first argument names, and allocates in a function of Python. "local" as the second argument loads it so that
// no other library finds its functions.
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long ptr;
typedef struct object object;
static int (*alloc)(ptr *, size_t);
static object *(*from_long)(long);

static object *take(object *self, object *args) {
	ptr p;
	(void)self, (void)args;
	return from_long(alloc(&p, 1 << 20));
}

static struct {
	const char *name;
	object *(*function)(object *, object *);
	int flags;
	const char *doc;
} method = {"take", take, 4, NULL}; // METH_NOARGS

int main(int argc, char **argv) {
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context;
	int (*init)(unsigned) = dlsym(cuda, "cuInit"), (*create)(void **, unsigned, int) = dlsym(cuda, "cuCtxCreate_v2");
	ptr p;
	alloc = dlsym(cuda, "cuMemAlloc_v2");
	if (argc != 3 || init(0) || create(&context, 0, 0) || alloc(&p, 64))
		return 1;
	void *python = dlopen(argv[1], RTLD_NOW | (strcmp(argv[2], "local") ? RTLD_GLOBAL : RTLD_LOCAL));
	if (!python)
		return 1;
	void (*initialize)(int) = dlsym(python, "Py_InitializeEx");
	object *(*module)(const char *) = dlsym(python, "PyImport_AddModule"), *(*dict)(object *) = dlsym(python, "PyModule_GetDict");
	object *(*function)(void *, object *, object *) = dlsym(python, "PyCFunction_NewEx");
	int (*set)(object *, const char *, object *) = dlsym(python, "PyDict_SetItemString"), (*run)(const char *, void *) = dlsym(python, "PyRun_SimpleStringFlags");
	from_long = dlsym(python, "PyLong_FromLong");
	initialize(0);
	if (set(dict(module("__main__")), "take", function(&method, NULL, NULL)) || run("def late():\n take()\nlate()\n", NULL))
		return 1;
	puts("done");
	fflush(stdout);
	char c;
	return read(0, &c, 1) < 0;
}
