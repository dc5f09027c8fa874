package prom_test

import (
	"fmt"
	"io"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/prom"
)

func ExampleNewCollector() {
	device, _ := sim.New(sim.Config{})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()
	tr.Alloc(alloc.Shape{30, 3, 512, 512}, alloc.Float32, tracker.Input)

	registry := prometheus.NewRegistry()
	registry.MustRegister(prom.NewCollector(tr.LightSnapshot, prom.Config{}))
	families, err := registry.Gather()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, family := range families {
		if strings.HasPrefix(family.GetName(), "gpumem_device") {
			fmt.Println(family.GetName(), family.GetType())
		}
	}
	// Output: gpumem_device_memory_bytes GAUGE
}
