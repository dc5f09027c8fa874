//go:build nogpu || (!(linux && (amd64 || arm64)) && !(windows && amd64))

package dylib

import (
	"fmt"
	"runtime"
)

// Open cannot load a library on this system.
func Open(names ...string) (Library, error) {
	return Library{}, fmt.Errorf("%s: this program cannot load libraries: it was built for %s/%s, or with the tag nogpu", names[0], runtime.GOOS, runtime.GOARCH)
}

// Func returns a function of the library, 0 if it has none of that name.
func (Library) Func(string) Func { return 0 }

// Call has nothing to call where no library can be loaded.
func (Func) Call(...uintptr) int32 { panic("dylib: call of a function that was not loaded") }
