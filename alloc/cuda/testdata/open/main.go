// Command open says whether there is a GPU.
package main

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
)

func main() {
	dev, err := cuda.Open(0)
	if errors.Is(err, cuda.ErrNoGPU) {
		fmt.Println("no driver")
		return
	}
	fmt.Println(dev, err)
}
