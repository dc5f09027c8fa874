//go:build linux && (amd64 || arm64)

package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/alloctest"
)

// standIn builds a library with HIP's functions, which gives out addresses and has no GPU.
func standIn(t *testing.T) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc to build the stand-in library with")
	}
	library := filepath.Join(t.TempDir(), "libamdhip64.so")
	text, err := exec.Command(gcc, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, "testdata/hip.c").CombinedOutput()
	require.NoError(t, err, "%s", text)
	return library
}

func TestDevice(t *testing.T) {
	library := standIn(t)
	alloctest.Device(t, func(t *testing.T) alloc.Device {
		device, err := open(library, 1)
		require.NoError(t, err)
		return device
	})
}

func TestRun(t *testing.T) {
	library := standIn(t)
	var out strings.Builder
	require.NoError(t, run(library, 1, &out))
	assert.Contains(t, out.String(), "| HIP [1], 1.0 GiB\n")
	assert.Contains(t, out.String(), "+ | 1 * (1024, 1024) | 4.0 MiB    | Parameter | float32 | main.go:")

	require.ErrorContains(t, run(library, 2, &out), "invalid device ordinal")
	require.ErrorContains(t, run("libnone.so", 0, &out), "libnone.so")
	require.ErrorContains(t, run("libc.so.6", 0, &out), "hip", "a library with other functions")
}
