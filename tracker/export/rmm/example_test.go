package rmm_test

import (
	"fmt"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/export/rmm"
)

// A log whose last request failed: what was live then, and what was asked for.
func ExampleRead() {
	log := `Thread,Time,Action,Pointer,Size,Stream
12101,10:11:02.100001,allocate,0x7f3c20000000,1048576,0x0
12101,10:11:02.100201,allocate,0x7f3c20100000,67108864,0x0
12101,10:11:02.101201,free,0x7f3c20000000,1048576,0x0
12101,10:11:02.102201,allocate failure,0x0,34359738368,0x0
`
	d, _, err := rmm.Read(strings.NewReader(log))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("live:", d.Snapshot.Live)
	fmt.Println("peak:", d.Snapshot.Peak)
	fmt.Println("refused:", d.OOM.Requested)
	// Output:
	// live: 1 buffer, 64.0 MiB
	// peak: 2 buffers, 65.0 MiB
	// refused: 32.0 GiB
}
