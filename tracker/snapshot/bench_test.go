package snapshot_test

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// benchEvents is the number of events, and of live buffers, of the dump that the benchmarks read and write.
const benchEvents = 1_000_000

// benchText is the JSON form of a dump like that of a training run: 5,000 call stacks of 24 frames, 100 groups. Each event has
// more after its other members.
func benchText(more string) []byte {
	var b bytes.Buffer
	list := func(name string, n int, element func(i int) string) {
		fmt.Fprintf(&b, ",\n%q: [", name)
		for i := range n {
			fmt.Fprintf(&b, "%s\n%s", []string{"", ","}[min(i, 1)], element(i))
		}
		b.WriteString("\n]")
	}
	frames := func(i int) string {
		return fmt.Sprintf(`{"function":"example.com/train/model.(*Layer).Forward%d","file":"/src/train/model/layer%d.go","line":%d}`, i, i%40, i)
	}
	stack := func(i int) string {
		var s []byte
		for depth := range 24 {
			s = fmt.Appendf(s, ",%d", (i*7+depth*depth)%2000)
		}
		return "[" + string(s[1:]) + "]"
	}
	b.WriteString(`{"schema":"gpumemtrack.dump","version":2,"time":"2026-01-02T03:04:05Z","process":{"pid":1},"devices":null,` + "\n" +
		`"snapshot": {"schema":"gpumemtrack.snapshot","version":4,"time":"2026-01-02T03:04:05Z","device":"GPU","ordinal":0,"live":{"count":0,"bytes":0},` +
		`"allocated_bytes":0,"reserved_bytes":0,"registered_bytes":0,"driver_used_bytes":null,"driver_total_bytes":null,` +
		`"peak":{"count":0,"bytes":0},"total":{"count":0,"bytes":0},"events":1000000`)
	list("stacks", 5000, stack)
	list("frames", 2000, frames)
	list("call_sites", 5000, func(i int) string {
		return fmt.Sprintf(`{"kind":"Activation","dtype":"float32","shape":[64,%d],"stack":%d,"call_site":%s,"live_count":20,"peak_count":20,"total_count":200}`, i+1, i, frames(i%2000))
	})
	list("allocations", benchEvents/10, func(i int) string {
		return fmt.Sprintf(`{"seq":%d,"time":"2026-01-02T03:04:05.%09dZ","address":%d,"call_site":%d,"allocated_bytes":%d}`, i*3, i*3000, 0x7f0000000000+int64(i)*512, i%5000, 512*(1+i%1000))
	})
	b.WriteString("},\n" + `"history": {"schema":"gpumemtrack.history","version":3,"start":"2026-01-02T03:04:05Z","first":0,"sections":["","step"]`)
	list("stacks", 5000, func(i int) string { return `{"call_site":` + frames(i%2000) + `,"frames":` + stack(i) + "}" })
	list("frames", 2000, frames)
	list("groups", 100, func(i int) string { return fmt.Sprintf(`{"kind":"Activation","dtype":"float32","shape":[64,%d]}`, i+1) })
	list("events", benchEvents, func(i int) string {
		return fmt.Sprintf(`{"ns":%d,"action":"%s","address":%d,"bytes":%d,"group":%d,"stack":%d%s}`,
			i*12345, []string{"alloc", "free"}[i%2], 0x7f0000000000+int64(i)/2%4096*512, 512*(1+i/2%1000), i/2%100, i/2%5000, more)
	})
	b.WriteString("}\n}\n")
	return b.Bytes()
}

// benchTexts are dumps whose events are in no section, and in one.
var benchTexts = sync.OnceValue(func() map[string][]byte {
	return map[string][]byte{"plain": benchText(""), "sections": benchText(`,"section":1`)}
})

// BenchmarkReadDump reads a dump of a million events and 100,000 live buffers.
func BenchmarkReadDump(b *testing.B) {
	for name, text := range benchTexts() {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				_, err := snapshot.ReadDump(bytes.NewReader(text))
				require.NoError(b, err)
			}
		})
	}
}

// BenchmarkWriteDump writes that dump.
func BenchmarkWriteDump(b *testing.B) {
	for name, text := range benchTexts() {
		b.Run(name, func(b *testing.B) {
			d, err := snapshot.ReadDump(bytes.NewReader(text))
			require.NoError(b, err)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, d.WriteJSON(io.Discard))
			}
		})
	}
}
