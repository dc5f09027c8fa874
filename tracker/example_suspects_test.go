package tracker_test

import (
	"fmt"
	"io"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// A server forgets the buffer of one request in a hundred.
func ExampleMemTracker_Suspects() {
	now := time.Now() // a clock of its own makes the example short
	tr, err := tracker.New(tracker.Config{Report: io.Discard, Clock: func() time.Time { return now }})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tr.Close()

	for request := range 3000 {
		input, err := tr.AllocBytes(alloc.MiB, tracker.Input)
		if err != nil {
			fmt.Println(err)
			return
		}
		now = now.Add(10 * time.Millisecond)
		if request%100 == 0 {
			continue // which leaves out the Free
		}
		if err := input.Free(); err != nil {
			fmt.Println(err)
			return
		}
	}

	for _, s := range tr.Suspects() {
		fmt.Println("at", s.CallSite)
		fmt.Println(s.Tally, "up to", s.Oldest, "old")
		fmt.Println(s.Late, "that old were freed,", s.Freed, "others before", s.Usual)
	}
	// Output:
	// at example_suspects_test.go:23 tracker_test.ExampleMemTracker_Suspects
	// 29 buffers, 29.0 MiB up to 30s old
	// 0 that old were freed, 2970 others before 16.777216ms
}
