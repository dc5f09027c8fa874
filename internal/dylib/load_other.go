//go:build nogpu || (!(linux && (amd64 || arm64)) && !(windows && amd64))

package dylib

import (
	"fmt"
	"runtime"
)

func load(name string) (handle uintptr, err error) {
	return 0, fmt.Errorf("%s: this program cannot load libraries: it was built for %s/%s, or with the tag nogpu", name, runtime.GOOS, runtime.GOARCH)
}

func lookup(uintptr, string) (address uintptr) { return 0 }

// Call has nothing to call where no library can be loaded.
func (Func) Call(...uintptr) int32 { panic("dylib: call of a function that was not loaded") }
