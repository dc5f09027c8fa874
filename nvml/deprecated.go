package nvml

import "github.com/gpumemtrack/gpumemtrack/alloc"

// Over calls FromDevices.
//
// Deprecated: use FromDevices.
func Over(devices ...alloc.Device) Source { return FromDevices(devices...) }
