package notebook_test

import (
	"log"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/notebook"
)

// In a notebook, a cell is a program with a main of its own. The function main here is that of such a cell, and init_zz_measure
// is what another cell declares once. Then the cell prints, on the simulated GPU:
//
//	RAM:  Consumed   Peaked  Used Total  in 0.000s, 0.000s by the GPU's clock, 0.000s of CPU (cell)
//	RSS:       0.4      0.0         7.4 MiB
//	Go:        0.1        -         0.4 MiB
//	GPU:      90.0      0.0        90.0 MiB
//
// In a test, as here, Measure does nothing: it would end the tests.
func Example() {
	main := func() {
		if _, err := tracker.Alloc(alloc.Shape{30, 3, 512, 512}, alloc.Float32, tracker.Input); err != nil {
			log.Fatal(err)
		}
	}
	init_zz_measure := func() { notebook.Measure(main) } //nolint:revive,staticcheck // GoNB runs init functions by their names

	init_zz_measure()
	// Output:
}
