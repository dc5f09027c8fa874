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
	recording, err := nvml.Record(context.Background(), nvml.Config{Source: nvml.FromDevices(gpu)}, func(context.Context) error {
		_, err := gpu.Alloc(500 * alloc.MiB)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(recording.Series[0].Device, recording.Series[0].Quantity, recording.Series[0].Quantity.Format(recording.Series[0].Max()))
	// Output: NVIDIA TITAN RTX[0] memory used 500.0 MiB
}
