//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package watch

import (
	"os"
)

func isRaw(*os.File) bool { return false }
