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

// A chart of what a function takes on a simulated GPU; chart.WriteFile writes a file.
func Example() {
	gpu, err := sim.New(sim.Config{})
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
	var picture bytes.Buffer
	if err := chart.Write(&picture, ".png", rec.Recording().Series, chart.Config{Title: "500 MiB"}); err != nil {
		log.Fatal(err)
	}
	is, err := png.DecodeConfig(&picture)
	fmt.Println(is.Width, is.Height, err)
	// Output: 800 500 <nil>
}
