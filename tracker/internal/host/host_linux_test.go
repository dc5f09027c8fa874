package host

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProcIsReadAsTheKernelWritesIt(t *testing.T) {
	for name, test := range map[string]struct {
		statm, status string
		resident      alloc.Bytes
		peak          alloc.Bytes
	}{
		"small":      {"765 438 410 5 0 123 0\n", "Name:\tx\nVmHWM:\t    1764 kB\nVmRSS:\t    1752 kB\n", 438 * pageSize, 1764 * alloc.KiB},
		"large":      {"12345678901 9876543210 1 2 3 4 5\n", "\nVmHWM:\t9876543210 kB\nVmRSS:\t  1 kB\n", 9876543210 * pageSize, 9876543210 * alloc.KiB},
		"no numbers": {"a b c d e f g h i j k l m n o p\n", "VmHWM: 1 kB\nVmRSS: x\n", -1, -1},
		"empty":      {"", "", -1, -1},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var p proc
			p.statm.path, p.status.path = filepath.Join(dir, "statm"), filepath.Join(dir, "status")
			defer p.close()
			require.NoError(t, os.WriteFile(p.statm.path, []byte(test.statm), 0o600))
			require.NoError(t, os.WriteFile(p.status.path, []byte(test.status), 0o600))
			assert.Equal(t, test.resident, p.resident())
			_, peak := p.residentAndPeak()
			assert.Equal(t, test.peak, peak)
		})
	}
	var none proc
	none.statm.path = filepath.Join(t.TempDir(), "none")
	assert.Equal(t, alloc.Bytes(-1), none.resident())
	none.close()
}
