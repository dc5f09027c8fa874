package export_test

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// What grew between two runs, whatever their files were.
func Example() {
	before := &export.Usage{Rows: []export.Row{
		{CallSite: mem.Frame{File: "/src/train.go", Line: 20, Function: "main.loss"}, Totals: snapshot.Totals{Live: mem.Tally{Count: 1, Bytes: 64 << 20}}},
	}}
	after := &export.Usage{Rows: []export.Row{
		{CallSite: mem.Frame{File: "/src/train.go", Line: 20, Function: "main.loss"}, Totals: snapshot.Totals{Live: mem.Tally{Count: 3, Bytes: 192 << 20}}},
	}}
	lines, _ := export.Compare([]*export.Usage{before}, []*export.Usage{after}, "line", "live")
	for _, l := range lines {
		fmt.Println(l.Key, "grew by", l.Change())
	}
	// Output: train.go:20 main.loss grew by 2 buffers, 128.0 MiB
}
