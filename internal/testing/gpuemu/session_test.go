//go:build linux

package gpuemu

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// driverProgram is testdata/driver.c, built once and linked with the emulated driver.
var driverProgram = sync.OnceValues(func() (string, error) {
	libs, err := Build()
	if err != nil {
		return "", err
	}
	cc, err := compiler()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "gpuemu-driver-")
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "driver")
	args := append(cc[1:len(cc):len(cc)], "-O1", "-w", "-o", program, "testdata/driver.c", "-L"+libs.Dir, "-lcuda", "-lpthread")
	if out, err := exec.Command(cc[0], args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return program, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if program, err := driverProgram(); err == nil {
		os.RemoveAll(filepath.Dir(program))
	}
	os.Exit(code)
}

// A session is one process that calls the driver, line by line.
type session struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
}

func start(t *testing.T, o Options, variables ...string) *session {
	t.Helper()
	if err := Available(); err != nil {
		t.Skip(err)
	}
	program, err := driverProgram()
	require.NoError(t, err)
	s := &session{t: t, cmd: Command(t, o, program)}
	s.cmd.Env = append(s.cmd.Env, variables...)
	s.cmd.Stderr = &s.stderr
	s.in, err = s.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	s.out = bufio.NewReader(out)
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		s.in.Close()
		_ = s.cmd.Wait()
	})
	return s
}

// ready is a session with the first device's context current.
func ready(t *testing.T, o Options) *session {
	t.Helper()
	s := start(t, o)
	s.expect("init", "ok")
	s.expect("retain 0", "ok")
	return s
}

func (s *session) do(line string) string {
	s.t.Helper()
	_, err := fmt.Fprintln(s.in, line)
	require.NoError(s.t, err)
	answer, err := s.out.ReadString('\n')
	require.NoError(s.t, err, "%s: %s", line, &s.stderr)
	return strings.TrimSuffix(answer, "\n")
}

func (s *session) expect(line, want string) {
	s.t.Helper()
	require.Equal(s.t, want, s.do(line), line)
}

// free is what cuMemGetInfo calls free.
func (s *session) free() int64 {
	s.t.Helper()
	var free, total int64
	_, err := fmt.Sscanf(s.do("info"), "ok %d of %d", &free, &total)
	require.NoError(s.t, err)
	return free
}

func (s *session) kill() {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Kill())
	_ = s.cmd.Wait()
}
