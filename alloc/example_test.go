package alloc_test

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

func Example() {
	shape, err := alloc.ParseShape("64x3x224x224")
	if err != nil {
		fmt.Println(err)
		return
	}
	size, err := shape.Bytes(alloc.Float32)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(shape, alloc.Float32, "takes", size)
	// Output:
	// (64, 3, 224, 224) float32 takes 36.8 MiB
}
