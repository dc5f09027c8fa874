package watch

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// run runs a command of this room.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return cli.Run(args, stdin, stdout, stderr, cli.Command{Name: "record", New: Record}, cli.Command{Name: "attach", New: Attach})
}

func TestLiveLine(t *testing.T) {
	var stdout, stderr bytes.Buffer
	dir := t.TempDir()
	require.Zero(t, run([]string{"record", "--source", "sim", "--duration", "50ms", "--interval", "10ms", "-o", filepath.Join(dir, "a.jsonl")}, nil, &stdout, &stderr), stderr.String())
	rec, err := nvml.ReadFile(filepath.Join(dir, "a.jsonl"))
	require.NoError(t, err)
	assert.Regexp(t, `^0s  GPU 0 memory used: 450\.0 MiB now, 450\.0 MiB peak █+$`, liveLine(rec))
	assert.Equal(t, "▁▄█", sparkline([]float64{0, 5, 10}))
	assert.Equal(t, "▁", sparkline([]float64{0}))
}

// A process that has ended and that its parent has not asked about is not alive.
func TestAZombieIsNotAlive(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	cmd := exec.Command("sleep", "1000")
	require.NoError(t, cmd.Start())
	assert.True(t, alive(cmd.Process.Pid))
	require.NoError(t, cmd.Process.Kill())
	assert.Eventually(t, func() bool { return !alive(cmd.Process.Pid) }, time.Minute, time.Millisecond)
	cmd.Wait()
}

// TestRecordExitsAsTheCommandDid, though there is nothing to draw: the driver gives no value.
func TestRecordExitsAsTheCommandDid(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("nvidia-smi is a shell script here")
	}
	dir := t.TempDir()
	t.Chdir(dir)
	script := `#!/bin/sh
case "$*" in
*-L*) ;;
*mig.mode.current,name*) echo "0, GPU-a, 00000000:0B:00.0, [N/A], NVIDIA RTX 4090" ;;
*memory.used*) fields=$(echo "$*" | sed 's/.*--query-gpu=\([^ ]*\).*/\1/'); echo "$fields" | sed 's/[^,][^,]*/[Unknown Error]/g; s/\[Unknown Error\]/GPU-a/' ;;
esac
`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(script), 0o755))
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	for _, code := range []int{0, 5} {
		var stdout, stderr bytes.Buffer
		picture := filepath.Join(dir, "x.png")
		got := run([]string{"record", "--source", "smi", "-o", picture, "--", "sh", "-c", fmt.Sprint("exit ", code)}, nil, &stdout, &stderr)
		assert.Equal(t, code, got, stderr.String())
		assert.Contains(t, stderr.String(), "nothing to draw")
		assert.NoFileExists(t, picture)
	}
}
