// Package otel gives OpenTelemetry what a tracker knows, as metrics:
//
//	observed, err := otel.Observe(provider.Meter("trainer"), tr)
//	defer observed.Unregister()
//
// and its memory by call stack, as OTLP profiles with the SDK's resource:
//
//	pusher, err := otel.PushProfiles(otlp.Config{}, res, tr)
//	defer pusher.Stop(ctx)
//
// The package is a module of its own. It gives metrics to OpenTelemetry's API: the program chooses the SDK's exporters and
// where the metrics go. Profiles, for which the SDK has no signal yet, are pushed by package tracker/export/otlp.
//
// # What is observed
//
// Sizes are in bytes (By). All have the attributes hw.id, hw.type (gpu), hw.name and hw.model (both the device's name), and
// hw.vendor of NVIDIA's GPUs. hw.id is the device's UUID, by which the metrics of other exporters are joined; of a device
// that has none it is its ordinal within the process.
//
//	hw.gpu.memory.limit          up-down counter  the device's memory
//	hw.gpu.memory.usage          up-down counter  what the driver says is in use, by all processes
//	gpumem.memory.live           up-down counter  requested bytes of the live buffers, by gpumem.kind
//	gpumem.host.live             up-down counter  the same in host memory, by gpumem.memory, if there is any
//	gpumem.memory.live.peak      gauge            their highest sum
//	gpumem.memory.reserved       up-down counter  held from the driver, by gpumem.state: allocated, inactive, pending
//	gpumem.memory.registered     up-down counter  of other code, registered with the tracker
//	gpumem.memory.untracked      up-down counter  in use, but neither reserved nor registered
//	gpumem.memory.allocated      counter          requested bytes of all buffers ever
//	gpumem.memory.allocations    counter          their number, {allocation}
//	gpumem.buffer.count          up-down counter  live buffers, {buffer}, by gpumem.kind
//	gpumem.cache.block.largest   gauge            the largest inactive block
//	gpumem.cache.retries         counter          times that the cache was emptied to serve a request, {retry}
//	gpumem.cache.refusals        counter          requests refused for lack of memory, {request}
//
// The names that begin with hw. are OpenTelemetry's own, of its conventions for hardware, which are in
// development. What the driver does not tell is not observed, nor is a cache that the tracker
// does not have. The state pending, freed memory that other streams may still use, is observed from
// the first such memory on.
//
// # Concurrency and cost
//
// Each collection takes one LightSnapshot: it copies groups and call sites, and no live
// buffers. The functions may be called from any goroutine.
package otel
