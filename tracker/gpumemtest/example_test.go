package gpumemtest_test

import (
	"fmt"
	"io"
	"log"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/gpumemtest"
)

// step is the code under test. It forgets to free the batch.
func step(tr *tracker.MemTracker) {
	if _, err := tr.Alloc(alloc.Shape{8, 3, 256, 256}, alloc.Float32, tracker.Input); err != nil {
		log.Fatal(err)
	}
}

// A test of code that may need 4 MiB of GPU memory and must free all of it. This code needs more, and frees nothing.
func Example() {
	test := func(t testing.TB) { // func TestStep(t *testing.T)
		tr := gpumemtest.New(t, gpumemtest.Config{MaxPeak: 4 * alloc.MiB})
		step(tr)
	}
	run(test)
	// Output:
	// FAIL: device memory was not freed: 1 buffer, 6.0 MiB
	// FAIL: peak of device memory: 1 buffer, 6.0 MiB, 2.0 MiB above the limit of 4.0 MiB; live at the peak:
}

// printer takes the place of a *testing.T, which an example does not have. It prints the first line of each failure; go test prints
// the others too, which have the call stacks.
type printer struct {
	testing.TB
	ends []func()
}

func run(test func(t testing.TB)) {
	t := &printer{}
	test(t)
	for _, end := range slices.Backward(t.ends) {
		end()
	}
}

func (*printer) Helper()              {}
func (*printer) Failed() bool         { return false }
func (*printer) Skipped() bool        { return false }
func (p *printer) Cleanup(end func()) { p.ends = append(p.ends, end) }
func (*printer) Errorf(format string, args ...any) {
	line, _, _ := strings.Cut(fmt.Sprintf(format, args...), "\n")
	fmt.Println("FAIL:", line)
}
func (*printer) Output() io.Writer { return io.Discard }
