//go:build amd64 || arm64

package preload

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
)

// buildShimTest compiles a file of testdata, which includes the shim with some of the driver's functions.
func buildShimTest(t *testing.T, file string) (program string) {
	t.Helper()
	cc, err := shimCompiler()
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	header := hooks(event.DriverFunctions, "/no/such/driver", map[string]uint64{"cuMemFree_v2": 1, "cuIpcOpenMemHandle_v2": 1, "cuGetProcAddress_v2": 1}, 500)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "hooks.h"), []byte(header), 0o600))
	program = filepath.Join(dir, "program")
	args := slices.Concat(cc[1:], []string{"-g", "-O1", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Wconversion", "-Wno-missing-field-initializers", "-Werror", "-Ishim", "-iquote../../bpf", "-I" + dir, "-o", program, "testdata/" + file, "-lpthread", "-ldl"})
	out, err := exec.Command(cc[0], args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// TestTheShimsFunctions runs what is in testdata/shimtest.c.
func TestTheShimsFunctions(t *testing.T) {
	path := buildShimTest(t, "shimtest.c")
	for _, name := range []string{"walk", "signal", "thread ends", "key", "get", "handle", "errno", "full", "places for copies", "overwritten", "rouse", "child", "by a system call"} {
		t.Run(name, func(t *testing.T) {
			out, err := exec.Command(path, name).CombinedOutput()
			assert.NoError(t, err, "%s", out)
		})
	}
}

// TestPythonFramesAtOnce runs what is in testdata/framestest.c.
func TestPythonFramesAtOnce(t *testing.T) {
	out, err := exec.Command(buildShimTest(t, "framestest.c")).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestRulesAgreeWithLibgcc runs what is in testdata/rulestest.c: the shim's own callers and libgcc's, at the same calls.
func TestRulesAgreeWithLibgcc(t *testing.T) {
	cc, err := shimCompiler()
	if err != nil || runtime.GOARCH != "amd64" {
		t.Skip("unwind rules of the shim are of amd64, and need a compiler: ", err)
	}
	dir := t.TempDir()
	header := hooks(event.DriverFunctions, "/no/such/driver", map[string]uint64{"cuMemAlloc_v2": 1, "cuGetProcAddress_v2": 1}, 2000)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "hooks.h"), []byte(header), 0o600))
	path, libraries := filepath.Join(dir, "rulestest"), []string{filepath.Join(dir, "a.so"), filepath.Join(dir, "b.so")}
	for _, args := range [][]string{
		{"-shared", "-fPIC", "-DLIBRARY=600", "-o", libraries[0]},
		{"-shared", "-fPIC", "-DLIBRARY=1000", "-o", libraries[1]},
		{"-Wall", "-Werror", "-Ishim", "-iquote../../bpf", "-I" + dir, "-o", path, "-lpthread", "-ldl"},
	} {
		args = slices.Concat(cc[1:], []string{"-g", "-O2", "-fomit-frame-pointer", "testdata/rulestest.c"}, args)
		out, err := exec.Command(cc[0], args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	out, err := exec.Command(path, libraries...).CombinedOutput()
	assert.NoError(t, err, "%s", out)
}

// TestTheShimHasOnlyTheDriversFunctions: a program asks the library which there are.
func TestTheShimHasOnlyTheDriversFunctions(t *testing.T) {
	old := hooks(nil, "/old/libcuda.so.1", map[string]uint64{"cuGetProcAddress": 1}, 2000)
	assert.Contains(t, old, "GET(cuGetProcAddress)")
	assert.NotContains(t, old, "cuGetProcAddress_v2")
}
