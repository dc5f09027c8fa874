// Package alloctest tests what implements alloc.Device, and checks what must
// always be true of an cache.Cache.
//
//	func TestDevice(t *testing.T) {
//		alloctest.Device(t, func(t *testing.T) alloc.Device { return openMine(t) })
//	}
//
// Device assumes nothing of a device but its contract, and that nobody else
// uses the device's memory meanwhile. SharedDevice does not assume the latter.
package alloctest
