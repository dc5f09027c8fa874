// Package watch has the commands that follow a program while it runs: record, which asks the
// driver, and attach, which sees the program's own calls. Neither changes the program.
package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
)

// addJSONFlag adds --json: alone it is "-", and stands for standard output.
func addJSONFlag(flags *pflag.FlagSet, to *string, usage string) {
	flags.StringVar(to, "json", "", usage)
	flags.Lookup("json").NoOptDefVal = "-"
}

// checkJSON returns an error if --json cannot be written. Without a file it would stand in the
// command's own output.
func checkJSON(name, to string, command []string, force bool) error {
	switch {
	case to == "-" && len(command) > 0:
		return cli.UsageError("%s: --json: the output is the command's: --json=FILE writes to a file", name)
	case to == "" || to == "-":
		return nil
	}
	return cli.CanCreate(to, force)
}

// child is a command that runs while it is watched.
type child struct {
	cmd     *exec.Cmd
	signals chan os.Signal
	ended   context.Context // done when the command has ended
	end     context.CancelFunc
	code    int // valid after ended
}

// findCommand finds a command's program before anything else begins. name is our own command.
func findCommand(a *cli.App, name string, command []string) (path string, err error) {
	if len(command) == 0 {
		return "", nil
	}
	path, err = exec.LookPath(command[0])
	hint := sudoHint(name, command[0], path, os.Environ(), invokerEnviron("/proc", os.Getppid()))
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return "", cannotRun(command[0], errors.Unwrap(err), hint)
	}
	if hint != "" {
		fmt.Fprintf(a.Stderr, "%s: %s: %s\n", cli.ProgramName, name, hint)
	}
	return path, nil
}

// cannotRun returns the error of a command that does not exist or cannot be run, with the exit code
// that shells have for it, and with what to do if that is known.
func cannotRun(name string, err error, advice string) error {
	code := cli.ExitNotRun
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = cli.ExitNotFound
	}
	return cli.Exit(code, fmt.Errorf("cannot run %q: %w: %s", name, err, cmp.Or(advice, "check its name, or write its path")))
}

// startChild starts a command with our own streams and environment. Until watch is
// called the command is not reaped, so even if it ends its number is not used again.
func startChild(a *cli.App, path string, command []string, start func(*exec.Cmd) error) (*child, error) {
	cmd := exec.Command(path, command[1:]...)
	cmd.Args[0] = command[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.Stdin, cli.Underlying(a.Stdout), cli.Underlying(a.Stderr)
	c := &child{cmd: cmd, signals: make(chan os.Signal, 8)}
	c.ended, c.end = context.WithCancel(context.Background())
	signal.Notify(c.signals, passedSignals()...)
	if err := start(cmd); err != nil {
		signal.Stop(c.signals)
		return nil, cannotRun(command[0], err, "")
	}
	return c, nil
}

// watch waits for the command to end, and until then passes on the signals that we get.
func (c *child) watch() {
	go func() {
		c.code = exitCode(c.cmd, c.cmd.Wait())
		signal.Stop(c.signals)
		c.end()
	}()
	go c.pass()
}

func (c *child) pid() int { return c.cmd.Process.Pid }

func (c *child) wait() int {
	<-c.ended.Done()
	return c.code
}

func (c *child) pass() {
	for {
		select {
		case <-c.ended.Done():
			return
		case s := <-c.signals:
			// The terminal has sent Ctrl+C to the child already, as to us.
			if !fromTerminal(s) {
				_ = c.cmd.Process.Signal(s) // fails if it has ended
			}
		}
	}
}

// exitCode returns a command's exit code, or 128 plus the number of the signal that ended it, as
// shells do.
func exitCode(cmd *exec.Cmd, err error) int {
	if cmd.ProcessState == nil {
		return cli.ExitFailed
	}
	if code := cmd.ProcessState.ExitCode(); code >= 0 {
		return code
	}
	return signaled(cmd.ProcessState)
}

// waitGone returns when the process has ended, or ctx is done.
func waitGone(ctx context.Context, pid int) {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for alive(pid) {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
