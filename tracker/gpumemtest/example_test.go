package gpumemtest_test

import (
	"testing"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/gpumemtest"
)

// A test of code that may need 24 MiB of GPU memory and must free all of it.
func Example() {
	// func TestStep(t *testing.T) {
	test := func(t *testing.T) {
		tr := gpumemtest.New(t, gpumemtest.Config{MaxPeak: 24 * alloc.MiB})
		batch, err := tr.Alloc(alloc.Shape{8, 3, 256, 256}, alloc.Float32, tracker.Input)
		if err != nil {
			t.Fatal(err)
		}
		defer batch.Free()
		// The code under test stands here. It gets tr.
	}

	_ = testing.InternalTest{Name: "TestStep", F: test}
}
