package kineto_test

import (
	"fmt"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/export/kineto"
)

// Two allocations on GPU 0, one of them inside of a function of Python.
func ExampleRead() {
	trace := `{"schemaVersion": 1, "traceEvents": [
		{"ph": "X", "cat": "python_function", "name": "train.py(12): forward", "pid": 1, "tid": 1, "ts": 12, "dur": 5},
		{"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 15, "args": {"Bytes": 4096, "Addr": 1, "Device Id": 0, "Device Type": 1}},
		{"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 25, "args": {"Bytes": 512, "Addr": 2, "Device Id": 0, "Device Type": 1}},
		{"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 30, "args": {"Bytes": -512, "Addr": 2, "Device Id": 0, "Device Type": 1}}]}`
	d, _, err := kineto.Read(strings.NewReader(trace))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("peak:", d.Snapshot.Peak)
	for line := range d.Snapshot.CallSites() {
		fmt.Println(line.Total, "by", line.CallSite)
	}
	// Output:
	// peak: 2 buffers, 4.5 KiB
	// 1 buffer, 4.0 KiB by train.py:12 forward
	// 1 buffer, 512 B by unknown
}
