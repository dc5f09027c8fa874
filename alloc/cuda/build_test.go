//go:build linux

package cuda_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/long"
)

// TestBuilds builds a program in the ways that programs are built, and runs it with a driver
// and without.
func TestBuilds(t *testing.T) {
	long.Test(t, "builds five programs, most of them with another standard library")
	long.Test(t, "builds five programs, most of them with another standard library")
	if _, err := exec.LookPath("go"); err != nil || testing.Short() {
		t.Skip("needs the go command, and takes a minute")
	}
	needEmulated(t)
	for name, build := range map[string]struct{ env, flags string }{
		"no cgo":        {"CGO_ENABLED=0", ""},
		"no cgo, PIE":   {"CGO_ENABLED=0", "-buildmode=pie"},
		"no cgo, small": {"CGO_ENABLED=0", "-ldflags=-s"},
		"cgo, PIE":      {"CGO_ENABLED=1", "-buildmode=pie"},
		"static":        {"CGO_ENABLED=0", "-tags nogpu"},
	} {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "open")
			args := append(append([]string{"build", "-o", program}, strings.Fields(build.flags)...), "./testdata/open")
			cmd := exec.Command("go", args...)
			cmd.Env = append(os.Environ(), build.env)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, string(out))
			opened := func(env string) string {
				run := gpuemu.Command(t, gpuemu.Options{}, program)
				run.Env = append(run.Env, env)
				out, err := run.Output()
				require.NoError(t, err)
				return string(out)
			}
			require.Equal(t, "no driver\n", opened("LD_LIBRARY_PATH="))
			if name != "static" {
				require.Equal(t, "Emulated GPU 0 <nil>\n", opened(""))
				return
			}
			require.Equal(t, "no driver\n", opened(""))
			file, err := elf.Open(program)
			require.NoError(t, err)
			defer file.Close()
			libraries, err := file.ImportedLibraries()
			require.NoError(t, err)
			require.Empty(t, libraries)
		})
	}
}
