package otel_test

import (
	"fmt"
	"io"

	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/contrib/otel"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

func ExampleObserve() {
	device, _ := sim.New(sim.Config{})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()

	provider := sdk.NewMeterProvider() // with a reader and an exporter
	observed, err := otel.Observe(provider.Meter("trainer"), tr)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(observed.Unregister())
	// Output: <nil>
}
