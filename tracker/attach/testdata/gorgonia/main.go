//go:build cuda

// Gorgonia allocates through gorgonia.org/cu. At each line of its input it does some more, and
// prints what the emulated driver has live.
package main

/*
#include <stddef.h>
#include <stdint.h>
size_t gpuemu_live(uint64_t *, uint64_t *, size_t);
*/
import "C"

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"

	"gorgonia.org/cu"
)

//go:noinline
func loadWeights(n int64) cu.DevicePtr {
	p, err := cu.MemAlloc(n)
	if err != nil {
		panic(err)
	}
	return p
}

func main() {
	runtime.LockOSThread() // contexts are current in threads
	device, err := cu.GetDevice(0)
	if err != nil {
		panic(err)
	}
	ctx, err := device.MakeContext(cu.SchedAuto)
	if err != nil {
		panic(err)
	}
	cu.SetCurrentContext(ctx)
	r := rand.New(rand.NewPCG(1, 2))
	var have []cu.DevicePtr
	have = append(have, loadWeights(64<<20))
	for in := bufio.NewScanner(os.Stdin); ; {
		for range 100 {
			if n := len(have); n > 1 && r.IntN(2) == 0 {
				i := 1 + r.IntN(n-1)
				cu.MemFree(have[i])
				have[i], have = have[n-1], have[:n-1]
				continue
			}
			have = append(have, loadWeights(1+r.Int64N(1<<20)))
		}
		var at, bytes [1 << 12]C.uint64_t
		for i := range C.gpuemu_live(&at[0], &bytes[0], 1<<12) {
			fmt.Printf("live %x %d\n", at[i], bytes[i])
		}
		fmt.Println("done")
		if !in.Scan() {
			return
		}
	}
}
