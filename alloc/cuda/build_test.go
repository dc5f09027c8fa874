//go:build linux

package cuda_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/gpuemu"
)

// TestBuilds builds the example that opens no device of its own in the ways that programs are
// built, and runs each with a driver and without.
func TestBuilds(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command here")
	}
	if err := gpuemu.Available(); err != nil {
		t.Skip(err)
	}
	for name, build := range map[string]struct{ env, flags string }{
		"no cgo":           {"CGO_ENABLED=0", ""},
		"no cgo, PIE":      {"CGO_ENABLED=0", "-buildmode=pie -trimpath"},
		"no cgo, stripped": {"CGO_ENABLED=0", "-trimpath -ldflags=-s"},
		"cgo, PIE":         {"CGO_ENABLED=1", "-buildmode=pie -trimpath"},
	} {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "vgg19")
			args := append(append([]string{"build", "-o", program}, strings.Fields(build.flags)...), "../../examples/vgg19")
			cmd := exec.Command("go", args...)
			cmd.Env = append(os.Environ(), build.env)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, string(out))
			for device, env := range map[string]string{"Emulated GPU [0]": "", "Simulated GPU [0]": "LD_LIBRARY_PATH="} {
				if !gpuemu.Emulated() && env != "" {
					continue // a real driver would be found
				}
				run := gpuemu.Command(t, gpuemu.Options{}, program, "-dir", t.TempDir())
				run.Env = append(run.Env, env)
				out, err := run.Output()
				require.NoError(t, err)
				first, _, _ := strings.Cut(string(out), "\n")
				require.Contains(t, first, device)
			}
		})
	}
}
