//go:build cuda && linux

package gpuemu

import (
	"debug/elf"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEverySymbolThatGorgoniaLinks compares what the compiled package leaves
// undefined with what the emulated driver has: src/unsupported.inc must name the rest.
func TestEverySymbolThatGorgoniaLinks(t *testing.T) {
	libs, err := Build()
	if err != nil {
		t.Skip(err)
	}
	archive, err := exec.Command("go", "list", "-export", "-f", "{{.Export}}", "gorgonia.org/cu").Output()
	require.NoError(t, err, "CGO_CFLAGS must name cuda.h: see scripts/cuda-headers")
	names, err := exec.Command("nm", "-A", strings.TrimSpace(string(archive))).Output()
	require.NoError(t, err)

	has := map[string]bool{}
	library, err := elf.Open(filepath.Join(libs.Dir, "libcuda.so.1"))
	require.NoError(t, err)
	defer library.Close()
	symbols, err := library.DynamicSymbols()
	require.NoError(t, err)
	for _, s := range symbols {
		has[s.Name] = has[s.Name] || s.Section != elf.SHN_UNDEF
	}
	for _, m := range regexp.MustCompile(`(?m) [Tt] (cu[A-Z]\w*)$`).FindAllStringSubmatch(string(names), -1) {
		has[m[1]] = true // the package's own
	}

	needed := regexp.MustCompile(`(?m) U (cu[A-Z]\w*)$`).FindAllStringSubmatch(string(names), -1)
	require.Greater(t, len(needed), 150)
	for _, m := range needed {
		require.True(t, has[m[1]], "src/unsupported.inc lacks %s", m[1])
	}
}
