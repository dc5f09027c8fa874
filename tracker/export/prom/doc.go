// Package prom makes a tracker a collector of Prometheus metrics:
//
//	registry.MustRegister(prom.NewCollector(tr.LightSnapshot, prom.Config{}))
//
// Package tracker/live serves the same at /metrics. A registry takes the trackers of several
// devices, each by a collector of its own.
//
// # What is counted
//
// The number of series is bounded: levels by kind and by state, and none by
// shape or call stack unless Config.TopCallSites asks for some, or there are leak suspects. Sums over the labels
// state and kind are meaningful:
// gpumem_device_memory_bytes adds up to the device's memory, gpumem_reserved_bytes
// to what the tracker holds from the driver, gpumem_live_bytes to what was requested of
// the live buffers. Host memory is in gpumem_memory_live_bytes alone, with the label memory
// "pinned" or "mapped".
//
// # Concurrency and cost
//
// A scrape takes a snapshot, and only reads it. A light one copies the groups and call sites; allocations wait for it some
// microseconds. Any goroutine may scrape.
package prom
