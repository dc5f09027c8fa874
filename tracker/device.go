package tracker

import (
	"errors"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
)

// openDevice opens the device of a Config that names none: the first CUDA
// device in a program built for CUDA, the simulated GPU in any other.
func openDevice() (alloc.Device, error) {
	device, err := cuda.Open(0)
	switch {
	case err == nil:
		return device, nil
	case errors.Is(err, cuda.ErrNotBuilt):
		return sim.New(sim.Config{})
	}
	return nil, err
}

// defaultDevice opens the first CUDA device or, if that cannot be, the simulated
// GPU; the error is why.
func defaultDevice() (alloc.Device, error) {
	device, because := cuda.Open(0)
	if because == nil {
		return device, nil
	}
	simulated, err := sim.New(sim.Config{})
	if err != nil {
		panic(err) // the zero Config is valid
	}
	return simulated, because
}
