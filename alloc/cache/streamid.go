package cache

// streamID numbers the streams of a cache: a block record has no room for a handle.
type streamID uint16
