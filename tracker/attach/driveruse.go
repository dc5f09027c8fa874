package attach

import "fmt"

// DriverUse is what processes have done with the CUDA driver, in the order in which a program does it.
type DriverUse int

// The uses of the driver: each includes those before it.
const (
	NotLoaded   DriverUse = iota // no process has loaded libcuda
	Loaded                       // one has loaded it, and may have looked up functions
	Initialized                  // one has called cuInit, which succeeded
	Called                       // one has used contexts, or has called a function that allocates or frees
)

// String returns the use as a phrase, such as "loaded libcuda".
func (u DriverUse) String() string {
	switch u {
	case NotLoaded:
		return "never loaded libcuda"
	case Loaded:
		return "loaded libcuda"
	case Initialized:
		return "initialized the driver"
	case Called:
		return "called the driver"
	}
	return fmt.Sprintf("DriverUse(%d)", int(u))
}
