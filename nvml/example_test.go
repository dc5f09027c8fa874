package nvml_test

import (
	"context"
	"fmt"
	"log"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// A recording of a simulated GPU; without Source it is of the driver's.
func Example() {
	gpu, err := sim.New(sim.Config{Name: "NVIDIA TITAN RTX", Overhead: -1})
	if err != nil {
		log.Fatal(err)
	}
	defer gpu.Close()
	rec, err := nvml.NewRecorder(nvml.Config{Source: nvml.FromDevices(gpu)})
	if err != nil {
		log.Fatal(err)
	}
	err = rec.Record(context.Background(), func(context.Context) error {
		_, err := gpu.Alloc(500 * alloc.MiB)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	s := rec.Recording().Series[0]
	fmt.Println(s.Device, s.Quantity, s.Quantity.Format(s.Max()))
	// Output: NVIDIA TITAN RTX[0] memory used 500.0 MiB
}
