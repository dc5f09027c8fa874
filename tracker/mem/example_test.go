package mem_test

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

func Example() {
	kind, err := mem.ParseKind("KVCache")
	if err != nil {
		panic(err)
	}
	site := mem.Frame{Function: "example.com/chat/model.(*Layer).Forward", File: "/src/model/layer.go", Line: 82}
	held := mem.Tally{Count: 2, Bytes: 3 * alloc.MiB}.Add(mem.Tally{Count: 1, Bytes: alloc.MiB})
	fmt.Println(kind, mem.CallSiteTally{Frame: site, Tally: held})
	// Output: KVCache 3 buffers, 4.0 MiB at layer.go:82 model.(*Layer).Forward
}
