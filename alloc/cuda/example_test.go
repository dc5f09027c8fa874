package cuda_test

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// Where there is no driver, Open returns ErrNoDriver; a tracker without a Device uses the
// simulated GPU then.
func ExampleOpen() {
	dev, err := cuda.Open(0)
	if errors.Is(err, cuda.ErrNoDriver) {
		fmt.Println("no GPU here")
		return
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	tr, err := tracker.New(tracker.Config{Device: dev})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tr.Close()
	tr.Track()
}
