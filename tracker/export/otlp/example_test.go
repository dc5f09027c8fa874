package otlp_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/otlp"
)

func ExampleStart() {
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer collector.Close()

	device, _ := sim.New(sim.Config{})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()

	pusher, err := otlp.Start(otlp.Config{Endpoint: collector.URL, NoMetrics: true}, tr)
	if err != nil {
		fmt.Println(err)
		return
	}
	tr.Alloc(alloc.Shape{30, 3, 512, 512}, alloc.Float32, tracker.Input)
	fmt.Println(pusher.Stop(context.Background()))
	fmt.Println(pusher.Stats())
	// Output:
	// <nil>
	// 4 profiles and 0 data points pushed; 0 profiles refused, 0 data points dropped, 0 retries
}
