package chart_test

import (
	"bytes"
	"context"
	"fmt"
	"image/png"
	"log"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/nvml/chart"
)

// A chart of what a function takes on a simulated GPU; fig.WriteFile writes a file.
func Example() {
	gpu, err := sim.New(sim.Config{})
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
	fig, err := chart.New(recording.Series, chart.Config{Title: "500 MiB"})
	if err != nil {
		log.Fatal(err)
	}
	var picture bytes.Buffer
	if err := fig.Write(&picture, ".png"); err != nil {
		log.Fatal(err)
	}
	is, err := png.DecodeConfig(&picture)
	fmt.Println(is.Width, is.Height, err)
	// Output: 800 500 <nil>
}
