// First is the smallest program with a tracker. It prints what was allocated and freed between the calls of Track.
package main

import (
	"log"
	"os"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

func main() {
	tr, err := tracker.New(tracker.Config{Report: os.Stdout})
	if err != nil {
		log.Fatal(err)
	}
	defer tr.Close()

	w, err := tr.Alloc(alloc.Shape{64, 3, 3, 3}, alloc.Float32, tracker.Parameter)
	if err != nil {
		log.Fatal(err)
	}
	tr.Track() // reports what was allocated and freed since the previous Track, by line
	if err := w.Free(); err != nil {
		log.Fatal(err)
	}
	tr.Track()
}
