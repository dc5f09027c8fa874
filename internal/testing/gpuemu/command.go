package gpuemu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const rerunVariable = "GPUEMU_TEST" // holds the name of the test that a child runs

// Command is a program to run under the emulated driver, on a machine of its
// own unless o.State names one. The test is skipped where there is none to be had.
func Command(t testing.TB, o Options, name string, args ...string) *exec.Cmd {
	t.Helper()
	if o.State == "" {
		o.State = filepath.Join(t.TempDir(), "gpuemu.state")
	}
	env, err := o.Environ()
	if err != nil {
		t.Skip(err)
	}
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = env
	return cmd
}

// Rerun runs the test that calls it once more, alone, in a child process under
// the emulated driver. It returns true in the parent, which must return then, and false
// in the child, which goes on. If the child fails, the parent fails with its output.
// The child has these further variables, each "NAME=value", in its environment.
func Rerun(t testing.TB, o Options, variables ...string) (parent bool) {
	t.Helper()
	if os.Getenv(rerunVariable) == t.Name() {
		return false
	}
	args := []string{"-test.run=" + pattern(t.Name()), "-test.v", "-test.timeout=" + timeout(t)}
	for _, arg := range os.Args[1:] {
		if strings.HasPrefix(arg, "-") && !strings.HasPrefix(arg, "-test.") {
			args = append(args, arg) // a flag of the package's own
		}
	}
	cmd := Command(t, o, os.Args[0], args...)
	cmd.Env = append(append(cmd.Env, rerunVariable+"="+t.Name()), variables...)
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil && strings.Contains(string(out), "--- SKIP: "+t.Name()+" "):
		t.Skipf("under the emulated driver:\n%s", out)
	case err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()+" "):
		t.Errorf("under the emulated driver: %v\n%s", err, out)
	}
	return true
}

// timeout is what is left of the parent's time, and two minutes at least.
func timeout(t testing.TB) string {
	least := 2 * time.Minute
	if d, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if end, set := d.Deadline(); set {
			return max(least, time.Until(end)).String()
		}
	}
	return least.String()
}

// pattern is the -test.run that selects one test, or one subtest, by its name.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// Emulated reports whether this process itself was started under the emulated
// driver: by Rerun, Command or the gpuemu command.
func Emulated() bool { return os.Getenv("GPUEMU_STATE") != "" }

// Main is for TestMain: it runs the package's tests, in a child process under the emulated driver unless this
// process is under it already, a real driver answers, or the emulated one cannot be had. It returns the exit
// status.
func Main(m *testing.M, realDriver bool) int {
	if realDriver || Emulated() || Available() != nil {
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
