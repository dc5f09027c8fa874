package cache_test

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
)

func Example() {
	dev, err := sim.New(sim.Config{Memory: 8 * alloc.GiB})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	c, err := cache.New(dev, cache.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}

	size, _ := alloc.Shape{64, 3, 224, 224}.Bytes(alloc.Float32)
	p, _ := c.Alloc(size)
	stats := c.Stats()
	fmt.Println("requested", stats.Requested.Bytes.Current, "reserved", stats.Reserved.Bytes.Current)

	_ = c.Free(p) // cached: the driver still counts it
	fmt.Println("inactive", c.Stats().Inactive.Bytes.Current)
	given, _ := c.Trim()
	fmt.Println("given back", given)

	_, err = c.Alloc(16 * alloc.GiB)
	if oom, ok := errors.AsType[*alloc.OutOfMemoryError](err); ok {
		fmt.Println("wanted", oom.Requested, "of", oom.Free)
	}
	// Output:
	// requested 36.8 MiB reserved 38.0 MiB
	// inactive 38.0 MiB
	// given back 38.0 MiB
	// wanted 16.0 GiB of 7.6 GiB
}

func ExampleParseConfig() {
	for _, settings := range []string{"", "expandable_segments:True"} {
		cfg, err := cache.ParseConfig(settings)
		if err != nil {
			fmt.Println(err)
			return
		}
		// What would an allocator with these settings hold, after batches that grow?
		dev, err := sim.New(sim.Config{Memory: 24 * alloc.GiB})
		if err != nil {
			fmt.Println(err)
			return
		}
		c, err := cache.New(dev, cfg)
		if err != nil {
			fmt.Println(err)
			return
		}
		for batch := range alloc.Bytes(8) {
			p, _ := c.Alloc((batch + 10) * 40 * alloc.MiB)
			_ = c.Free(p)
		}
		fmt.Printf("%q reserves %v\n", settings, c.Stats().Reserved.Bytes.Current)
	}
	_, err := cache.ParseConfig("max_split_size:128")
	fmt.Println(err)
	// Output:
	// "" reserves 4.2 GiB
	// "expandable_segments:True" reserves 680.0 MiB
	// parse allocator settings "max_split_size:128": unknown key "max_split_size"
}
