package files_test

import (
	"fmt"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
)

// A log of TensorFlow says why a request failed although more than enough was free.
func ExampleRead_log() {
	const at = "2026-01-02 03:04:05.678901: I tsl/framework/bfc_allocator.cc:1083] "
	log := at + "Allocator (GPU_0_bfc) ran out of memory trying to allocate 5.00MiB (rounded to 5242880)requested by op MatMul\n" +
		at + "Next region of size 8388608\n" +
		at + "Free  at 7f0000000000 of size 4194304 next 1\n" +
		at + "InUse at 7f0000400000 of size 1048576 next 2\n" +
		at + "Free  at 7f0000500000 of size 3145728 next 18446744073709551615\n"
	file, err := files.Read(strings.NewReader(log))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(file.Failures[0])
	// Output:
	// line 1: allocator GPU_0_bfc ran out of memory: 5.0 MiB requested (5242880 bytes) by MatMul
	// pool: 1.0 MiB in use in one chunk, 7.0 MiB free in 2 chunks, the largest of 4.0 MiB
	// fragmented: the 7.0 MiB that is free would do, but lies in pieces
	// least in the way: 1.0 MiB in use in one chunk, from 0x7f0000000000 on; without them there is room for 8.0 MiB in one piece
	//   chunk of 1.0 MiB at 0x7f0000400000
	// hole of 4.0 MiB at 0x7f0000000000, beside chunks of 1.0 MiB at 0x7f0000400000
	// hole of 3.0 MiB at 0x7f0000500000, beside chunks of 1.0 MiB at 0x7f0000400000
	// in use: 1.0 MiB in one chunk of 1.0 MiB
}
