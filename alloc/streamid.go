package alloc

// Stream is a queue of work on a device, by the driver's handle. 0 is the default
// stream.
type Stream uint64
