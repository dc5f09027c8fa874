package notebook_test

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/notebook"
)

// In a notebook these are two cells: the first measures all that follow, the second is one of them.
func Example() {
	// %%
	main := func() {
		tracker.Default().Alloc(alloc.Shape{30, 3, 512, 512}, alloc.Float32, tracker.Input)
	}
	// func init_zz_measure()
	notebook.Measure(main) // prints what the cell allocated and how long it took; in a test it does nothing
}
