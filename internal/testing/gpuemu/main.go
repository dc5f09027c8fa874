package gpuemu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Main is for TestMain: it runs the package's tests, in a child process under the emulated driver unless this
// process is under it already, a real driver answers, or the emulated one cannot be had. It returns the exit
// status.
func Main(m *testing.M, real bool) int {
	if real || Emulated() || Available() != nil {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "gpuemu-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	env, err := Options{State: filepath.Join(dir, "%p")}.Environ()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
