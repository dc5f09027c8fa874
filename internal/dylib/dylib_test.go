//go:build linux && (amd64 || arm64) && !nogpu

package dylib_test

import (
	"path/filepath"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/dylib"
)

func libc(t *testing.T) dylib.Library {
	t.Helper()
	lib, err := dylib.Open(filepath.Join(t.TempDir(), "none.so"), "libc.so.6")
	if err != nil {
		t.Skip("another C library: ", err)
	}
	return lib
}

func TestCall(t *testing.T) {
	lib := libc(t)
	negative := -5
	require.EqualValues(t, 5, lib.Func("abs").Call(uintptr(negative)))
	number := [4]byte{'-', '4', '2', 0}
	require.EqualValues(t, -42, lib.Func("atoi").Call(uintptr(unsafe.Pointer(&number))))
	require.Zero(t, lib.Func("no_such_function"))
	_, err := dylib.Open(filepath.Join(t.TempDir(), "none.so"))
	require.ErrorContains(t, err, "none.so")
}

// TestErrorsSayWhy opens a library that is missing while threads take goroutines from each other.
func TestErrorsSayWhy(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none.so")
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for range 2000 {
				if _, err := dylib.Open(none); !assert.ErrorContains(t, err, "none.so") {
					return
				}
			}
		})
	}
	group.Wait()
}

// TestResultsStayInPlace has C write to variables of goroutines while their stacks grow.
func TestResultsStayInPlace(t *testing.T) {
	memcpy := libc(t).Func("memcpy")
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for i := range 100 {
				assert.True(t, copies(memcpy, i))
			}
		})
	}
	group.Wait()
}

// copies copies a number at each depth of a recursion.
func copies(memcpy dylib.Func, depth int) bool {
	var space [256]byte
	from, to := uint64(depth)+1, uint64(0)
	memcpy.Call(uintptr(unsafe.Pointer(&to)), uintptr(unsafe.Pointer(&from)), 8)
	space[depth%256] = byte(to)
	return to == from && space[depth%256] == byte(from) && (depth == 0 || copies(memcpy, depth-1))
}
