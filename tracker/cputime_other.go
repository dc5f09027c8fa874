//go:build !unix && !windows

package tracker

import "time"

// processTime is not known here.
func processTime() time.Duration { return -1 }
