package alloc

// Stream is a queue of work on a device, by the driver's handle. 0 is the default
// stream.
type Stream uint64

// streamID numbers the streams of a cache: a block record has no room for a handle.
type streamID uint16
