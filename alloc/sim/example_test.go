package sim_test

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
)

func Example() {
	dev, err := sim.New(sim.Config{Memory: 8 * alloc.GiB})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()

	before, _ := dev.MemInfo()
	p, err := dev.Alloc(3 * alloc.MiB)
	fmt.Println(p, err)
	info, _ := dev.MemInfo()
	fmt.Println("used:", info.Used()-before.Used())
	_, err = dev.Alloc(16 * alloc.GiB)
	fmt.Println(err)
	fmt.Println(dev.Free(p))
	// Output:
	// 0x40000000000 <nil>
	// used: 4.0 MiB
	// alloc 16.0 GiB on Simulated GPU 0: out of device memory: free 7.6 GiB, total 8.0 GiB, allocated 3.0 MiB
	// <nil>
}
