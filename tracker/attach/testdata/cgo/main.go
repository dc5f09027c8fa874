// Cgo allocates through cgo, with threads, then prints what the emulated driver has live and
// waits for the end of its input.
package main

/*
#cgo LDFLAGS: -lcuda
#include <stddef.h>
#include <stdint.h>
int cuInit(unsigned);
int cuCtxCreate_v2(void **, unsigned, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuMemFree_v2(unsigned long long);
size_t gpuemu_live(uint64_t *, uint64_t *, size_t);
*/
import "C"

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"unsafe"
)

type tensor struct{ at C.ulonglong }

//go:noinline
func loadWeights(n int) tensor {
	var t tensor
	if code := C.cuMemAlloc_v2(&t.at, C.size_t(n)); code != 0 {
		panic(code)
	}
	return t
}

//go:noinline
func train(n int) tensor {
	t := loadWeights(n)
	return t
}

func main() {
	runtime.LockOSThread()
	var context unsafe.Pointer
	if C.cuInit(0) != 0 || C.cuCtxCreate_v2(&context, 0, 0) != 0 {
		panic("no device")
	}
	train(1 << 20)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			runtime.LockOSThread()
			C.cuCtxSetCurrent(context)
			for i := range 100 {
				if t := train(1000 + i); i%3 != 0 {
					C.cuMemFree_v2(t.at)
				}
			}
		})
	}
	wg.Wait()
	var at, bytes [1 << 12]C.uint64_t
	for i := range C.gpuemu_live(&at[0], &bytes[0], 1<<12) {
		fmt.Printf("live %x %d\n", at[i], bytes[i])
	}
	fmt.Println("done")
	io.Copy(io.Discard, os.Stdin)
}
