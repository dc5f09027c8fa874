package hostile_test

import (
	"bytes"
	"fmt"
	"strings"
)

const rmmHead = "Thread,Time,Action,Pointer,Size,Stream\n"

// histories are those of other tools.
var histories = []file{
	{"a long line.csv", times(rmmHead+"1,10:00:00.1,allocate,0x1,1,0x", "0", 1<<28, "\n")},
	{"allocations.csv", func() []byte {
		var b bytes.Buffer
		b.WriteString(rmmHead)
		for i := range 1 << 18 {
			fmt.Fprintf(&b, "%d,10:00:00.1,allocate,%#x,%d,%#x\n", i, i+1, i, i)
		}
		return b.Bytes()
	}},
	{"sizes of 400 digits.csv", times(rmmHead, "1,10:00:00.1,allocate,0x1,"+strings.Repeat("9", 400)+",0x0\n", 1<<16, "")},
	{"failures.csv", times(rmmHead, "1,10:00:00.1,allocate failure,0x0,1,0x0\n", 1<<18, "")},
	{"frees of nothing.csv", times(rmmHead, "1,10:00:00.1,free,0x5,1,0x0\n", 1<<18, "")},
	{"control characters.csv", times(rmmHead, "\x1b]0;x\x07,10:00:00.1,allocate,0x1,1,0x0\n", 1<<18, "")},
	{"devices.csv", func() []byte {
		var b bytes.Buffer
		b.WriteString("Event Type,Device ID,Address,Stream,Size (bytes),Free Memory,Total Memory,Current Allocs,Start,End,Elapsed,Location\n")
		for i := range 1 << 16 {
			fmt.Fprintf(&b, "Alloc,%d,%#x,0,80,0,0,1,1.1,1.2,0.1,/a/%d.py:%d\n", i, i+1, i, i)
		}
		return b.Bytes()
	}},
	{"memory events.json", times(`{"schemaVersion":1,"traceEvents":[`, `{"name":"[memory]","ts":1,"args":{"Bytes":1,"Addr":1}},`, 1<<18, "{}]}")},
	{"calls without an end.json", times(`{"schemaVersion":1,"traceEvents":[`, `{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":99},`, 1<<18, `{"name":"[memory]","ts":2,"args":{"Bytes":1,"Addr":1}}]}`)},
	{"names of calls.json", func() []byte {
		var b bytes.Buffer
		b.WriteString(`{"schemaVersion":1,"traceEvents":[`)
		for i := range 1 << 14 {
			fmt.Fprintf(&b, `{"ph":"X","cat":"python_function","name":"%d%s","tid":%d,"ts":1,"dur":99},{"name":"[memory]","tid":%d,"ts":2,"args":{"Bytes":1,"Addr":%d}},`, i, strings.Repeat("n", 1<<12), i, i, i)
		}
		b.WriteString("{}]}")
		return b.Bytes()
	}},
	{"devices of a trace.json", func() []byte {
		var b bytes.Buffer
		b.WriteString(`{"schemaVersion":1,"traceEvents":[`)
		for i := range 1 << 16 {
			fmt.Fprintf(&b, `{"name":"[memory]","ts":2,"args":{"Bytes":1,"Addr":1,"Device Type":1,"Device Id":%d}},`, i)
		}
		b.WriteString("{}]}")
		return b.Bytes()
	}},
	{"deep arguments.json", times(`{"schemaVersion":1,"traceEvents":[{"name":"[memory]","args":`, `{"a":`, 1<<20, "")},
	{"numbers of a trace.json", times(`{"schemaVersion":1,"traceEvents":[{"name":"[memory]","ts":`, "9", 1<<22, `}]}`)},
	{"a timeline.json", times("[[1,2],[", "[0,1,2,3,4,5,6,7,8],", 1<<18, "[0,0,0,0,0,0,0,0,0]]]")},
	{"a deep timeline.json", times("[[1", ",[1", 1<<20, "")},
	{"numbers of a timeline.json", times("[[1", ",1e999", 1<<20, "]]")},
}
