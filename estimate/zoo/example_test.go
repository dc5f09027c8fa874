package zoo_test

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

func ExampleByName() {
	m, err := zoo.ByName("resnet50")
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := estimate.Model(m.Layers, m.Input, estimate.Train("adam"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.Title, r.Params.Count, "parameters; fits into 16 GiB:", r.Fits(16*alloc.GiB))
	// Output: ResNet-50 25557032 parameters; fits into 16 GiB: true
}
