// Purego allocates on the first GPU without cgo, then prints what the emulated driver
// has live and waits for the end of its input.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
)

//go:noinline
func loadWeights(d alloc.Device, n alloc.Bytes) alloc.Ptr {
	p, err := d.Alloc(n)
	check(err)
	return p
}

func main() {
	d, err := cuda.Open(0)
	check(err)
	for range 3 {
		loadWeights(d, 1<<20)
	}
	check(d.Free(loadWeights(d, 5000)))
	live, err := gpuemu.Live()
	check(err)
	for at, bytes := range live {
		fmt.Printf("live %x %d\n", at, bytes)
	}
	fmt.Println("done")
	io.Copy(io.Discard, os.Stdin)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
