// Ggml allocates by ggml's library without cgo, as yzma does. The library is the first argument. It prints what is live, and
// waits for the end of its input.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/ebitengine/purego"
)

var (
	bufferType func() uintptr
	newBuffer  func(of uintptr, size uintptr) uintptr
	free       func(buffer uintptr)
)

//go:noinline
func loadWeights(size uintptr) uintptr { return newBuffer(bufferType(), size) }

func main() {
	library, err := purego.Dlopen(os.Args[1], purego.RTLD_NOW)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	purego.RegisterLibFunc(&bufferType, library, "ggml_backend_cpu_buffer_type")
	purego.RegisterLibFunc(&newBuffer, library, "ggml_backend_buft_alloc_buffer")
	purego.RegisterLibFunc(&free, library, "ggml_backend_buffer_free")
	for i := range 100 {
		size := uintptr(1+i) << 10
		if buffer := loadWeights(size); i%10 == 0 {
			fmt.Printf("live %x %d\n", buffer, size)
		} else {
			free(buffer)
		}
	}
	fmt.Println("done")
	io.Copy(io.Discard, os.Stdin)
}
