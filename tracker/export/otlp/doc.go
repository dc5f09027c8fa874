// Package otlp pushes device memory to an OpenTelemetry Collector, or to another server of OTLP 1.11: memory by call stack as
// profiles, and levels as metrics.
//
//	pusher, err := otlp.Start(otlp.Config{Endpoint: "http://collector:4318"}, tr)
//	defer pusher.Stop(ctx)
//
// A program that uses OpenTelemetry's SDK takes module contrib/otel instead, which has the same data with the SDK's resource.
//
// # Profiles
//
// The signal of profiles is in development (v1development): a Collector needs --feature-gates=+service.profilesSupport.
// A push has what changed since the latest one that the server has taken: only call sites that changed, with signed
// differences. So the sums of all pushes of a process are its state: those of inuse_space are its live memory, those of any
// interval what it gained or lost. Profile.time_unix_nano and duration_nano are the interval.
//
// The sample types are those of package pprof: alloc_objects, alloc_space, inuse_objects, inuse_space, and for host memory
// host_objects and host_space, each a profile. Stacks have functions, files and lines; an inlined function is a location of
// its own. Each request has a dictionary of its own. The attributes are:
//
//	samples    gpumem.kind, gpumem.dtype, gpumem.shape, gpumem.stream, gpumem.memory, gpumem.section, hw.id (the device's UUID)
//	profiles   gpumem.profile.temporality ("delta"), hw.id, hw.type, hw.name, hw.model, hw.vendor
//	resources  service.name, process.pid, process.executable.name, host.name, container.id, container.runtime.name,
//	           k8s.pod.uid, gpumem.systemd.unit, gpumem.rank, gpumem.world_size, and those of Config.Resource
//
// What is not known is left out.
//
// # Metrics
//
// The metrics are those of module contrib/otel, whose documentation lists them. In addition there are gpumem.otlp.exported,
// gpumem.otlp.dropped and gpumem.otlp.retries, which count what was pushed.
//
// # When the server does not answer
//
// A request is repeated, with the same bytes, until the server has taken or refused it, with exponential back-off of at most
// a minute, or when the server wishes. Profiles have an ID, so a server that has taken a request and died before it answered
// can tell that it has them. Meanwhile changes of profiles add up, and nothing is lost. Metrics wait in a queue of 64 requests
// and 16 MiB at most, about a quarter of an hour: then the oldest are dropped. What is dropped is counted, and Stop says it.
// Profiles that the server refuses are pushed again later, after a pause that grows to 15 minutes.
//
// # Cost
//
// A push takes a LightSnapshot, in a goroutine of its own: allocations wait for it some microseconds. Its cost follows the
// number of call sites by a small factor, and the number of those that changed by a large one. A request holds a quarter of
// the 4 MiB that servers take at least. The pusher keeps an entry of some 100 bytes for each call site.
package otlp
