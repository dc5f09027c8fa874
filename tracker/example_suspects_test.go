package tracker_test

import (
	"fmt"
	"io"
	"strings"
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
		why, _, _ := strings.Cut(s.String(), "\n") // how the line is reached follows
		fmt.Println(why)
	}
	// Output:
	// example_suspects_test.go:24 tracker_test.ExampleMemTracker_Suspects looks forgotten: 29 buffers, 29.0 MiB, 2 to 30 s old; 0 of 29 that became older than 1.1 s were freed since, 2,970 others before 17 ms
}
