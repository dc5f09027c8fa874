//go:build !unix && !windows

package host

import "time"

// processTime is not known here.
func processTime() time.Duration { return -1 }
