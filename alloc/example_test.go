package alloc_test

import (
	"errors"
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
	cache := alloc.NewCache(dev, alloc.CacheConfig{})

	size, _ := alloc.Shape{64, 3, 224, 224}.Bytes(alloc.Float32)
	p, _ := cache.Alloc(size)
	stats := cache.Stats()
	fmt.Println("requested", stats.Requested.Bytes.Current, "reserved", stats.Reserved.Bytes.Current)

	_ = cache.Free(p) // cached: the driver still counts it
	fmt.Println("inactive", cache.Stats().Inactive.Bytes.Current)
	given, _ := cache.Trim()
	fmt.Println("given back", given)

	_, err = cache.Alloc(16 * alloc.GiB)
	var oom *alloc.OutOfMemoryError
	if errors.As(err, &oom) {
		fmt.Println("wanted", oom.Requested, "of", oom.Free)
	}
	// Output:
	// requested 36.8 MiB reserved 38.0 MiB
	// inactive 38.0 MiB
	// given back 38.0 MiB
	// wanted 16.0 GiB of 7.6 GiB
}

func ExampleParseCacheConfig() {
	for _, settings := range []string{"", "expandable_segments:True"} {
		cfg, err := alloc.ParseCacheConfig(settings)
		if err != nil {
			fmt.Println(err)
			return
		}
		// What would an allocator with these settings hold, after batches that grow?
		cache := alloc.NewCache(alloc.NewCountingDevice(24*alloc.GiB), cfg)
		for batch := range alloc.Bytes(8) {
			p, _ := cache.Alloc((batch + 10) * 40 * alloc.MiB)
			_ = cache.Free(p)
		}
		fmt.Printf("%q reserves %v\n", settings, cache.Stats().Reserved.Bytes.Current)
	}
	_, err := alloc.ParseCacheConfig("max_split_size:128")
	fmt.Println(err)
	// Output:
	// "" reserves 4.2 GiB
	// "expandable_segments:True" reserves 680.0 MiB
	// parse allocator settings "max_split_size:128": unknown key "max_split_size"
}
