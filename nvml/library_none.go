//go:build !linux

package nvml

// OpenLibrary opens the driver's library, which needs Linux. Here the error is always
// ErrNotAvailable.
func OpenLibrary(path string) (Source, error) {
	return nil, notAvailable("libnvidia-ml.so.1 is out of reach: this program was not built for Linux")
}
