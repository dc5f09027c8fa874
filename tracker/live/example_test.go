package live_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
)

// The program mounts the handler where it likes, on an address that is not public.
func Example() {
	device, err := sim.New(sim.Config{})
	if err != nil {
		log.Fatal(err)
	}
	tr, err := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	if err != nil {
		log.Fatal(err)
	}
	defer tr.Close()
	mux := http.NewServeMux()
	mux.Handle("/debug/gpumem/", live.Handler(tr))
	server := httptest.NewServer(mux) // http.ListenAndServe("localhost:6061", mux)
	defer server.Close()

	answer, err := http.Get(server.URL + "/debug/gpumem/profile?debug=1")
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(text))
	// Output: Simulated GPU [0] | 0 buffers, 0 B live | 0 B reserved | peak 0 buffers, 0 B
}
