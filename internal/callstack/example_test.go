package callstack_test

import (
	"fmt"
	"path"

	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

func ExampleTable() {
	stacks := callstack.NewTable(callstack.Config{Depth: 2})
	var ids [3]callstack.ID
	for i := range ids {
		ids[i] = stacks.Capture(0)
	}
	fmt.Println(ids, stacks.Len())
	for f := range stacks.Frames(ids[0]) {
		fmt.Println(path.Base(f.Function))
	}
	// Output:
	// [1 1 1] 1
	// callstack_test.ExampleTable
	// testing.runExample
}
