package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMain runs the program itself where a test asks for it.
func TestMain(m *testing.M) {
	if os.Getenv("GPUMEMTRACK_TEST_MAIN") != "" {
		main()
	}
	os.Exit(m.Run())
}

// program is this program, as a process of its own.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), "GPUMEMTRACK_TEST_MAIN=1", "CUDA_VISIBLE_DEVICES=0")
	return cmd
}

// TestCtrlC: a signal ends a command that reads, with the code of shells, long before the end of its input. The input is a
// pickle that takes no memory, and a pipe holds little of it: what was written was read.
func TestCtrlC(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no signal can be sent to another process")
	}
	const begun, whole = 1 << 20, 1 << 33
	piece := bytes.Repeat([]byte("K\x010"), 1<<14) // a number, which is dropped
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		out := filepath.Join(t.TempDir(), "a.html")
		cmd := program(t, "convert", "-", "-o", out)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		stdin, err := cmd.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = io.WriteString(stdin, "\x80\x04}")
		require.NoError(t, err)
		written, told := int64(0), false
		for err == nil && written < whole {
			if written > begun && !told {
				told = true
				require.NoError(t, cmd.Process.Signal(s))
			}
			var n int
			n, err = stdin.Write(piece)
			written += int64(n)
		}
		assert.ErrorIs(t, err, syscall.EPIPE, "it reads no more")
		_ = cmd.Wait() // the code is checked
		assert.Equal(t, 128+int(s.(syscall.Signal)), cmd.ProcessState.ExitCode(), stderr.String())
		assert.Empty(t, stdout.String()+stderr.String())
		left, err := os.ReadDir(filepath.Dir(out))
		require.NoError(t, err)
		assert.Empty(t, left, "nothing half-written")
	}
}

// TestClosedPipe: the program ends with the code of SIGPIPE when the reader of its output has gone, and not before
// its files are written.
func TestClosedPipe(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no SIGPIPE")
	}
	file := filepath.Join(t.TempDir(), "a.csv")
	for _, args := range [][]string{
		{"sensors", "--source", "sim", "--watch", "--interval", "10ms", "--json"},
		{"record", "--source", "sim", "--duration", "30ms", "--interval", "10ms", "-o", file},
	} {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		cmd := program(t, args...)
		var stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = w, &stderr
		require.NoError(t, cmd.Start())
		require.NoError(t, w.Close())
		if args[0] == "sensors" {
			_, err = r.Read(make([]byte, 1))
			require.NoError(t, err)
		}
		require.NoError(t, r.Close())
		_ = cmd.Wait() // the code is checked
		assert.Equal(t, 128+13, cmd.ProcessState.ExitCode(), args)
		assert.NotContains(t, stderr.String(), "gpumemtrack:")
	}
	assert.FileExists(t, file)
}

// TestTheCommandIsNotEndedByAClosedPipe: what record and attach print does not decide the command's code, and the command
// has SIGPIPE as it would have without them.
func TestTheCommandIsNotEndedByAClosedPipe(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no SIGPIPE")
	}
	file := filepath.Join(t.TempDir(), "a.csv")
	for command, want := range map[string]int{"exit 5": 5, "exit 0": 0, "yes": 128 + 13} {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		cmd := program(t, "record", "-f", "--source", "sim", "--interval", "10ms", "-o", file, "--", "sh", "-c", command)
		cmd.Stdout, cmd.Stderr = w, w
		require.NoError(t, r.Close())
		require.NoError(t, cmd.Start())
		require.NoError(t, w.Close())
		_ = cmd.Wait() // the code is checked
		assert.Equal(t, want, cmd.ProcessState.ExitCode(), command)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.True(t, strings.HasSuffix(string(text), "\n"))
	}
}

func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	cmd := program(t, "version")
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	cmd.Stdout = full
	require.NoError(t, cmd.Start())
	text, err := io.ReadAll(stderr)
	require.NoError(t, err)
	_ = cmd.Wait() // the code is checked
	assert.Equal(t, 1, cmd.ProcessState.ExitCode())
	assert.Equal(t, "gpumemtrack: write /dev/stdout: no space left on device\n", string(text))
}

// gorgonia.org/cu ends a program from its init where no device answers: the program must not
// link it, whatever tag it is built with.
func TestLinksNoGorgonia(t *testing.T) {
	out, err := exec.Command("go", "list", "-tags", "cuda", "-deps", ".").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "github.com/gpumemtrack/gpumemtrack/alloc/cuda\n")
	require.NotContains(t, string(out), "gorgonia.org/cu")
}
