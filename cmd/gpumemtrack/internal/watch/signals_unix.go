//go:build unix

package watch

import (
	"bytes"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
)

// passedSignals returns the signals that are passed on to the command.
func passedSignals() []os.Signal {
	return append(cli.StopSignals(), syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT)
}

// fromTerminal reports whether the terminal sends a signal to its whole foreground group, which the
// command is in too.
func fromTerminal(s os.Signal) bool {
	if s != os.Interrupt && s != syscall.SIGQUIT {
		return false
	}
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// signaled returns the exit code of a process that a signal ended.
func signaled(s *os.ProcessState) int {
	if status, ok := s.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return cli.ExitSignal + int(status.Signal())
	}
	return cli.ExitFailed
}

// alive reports whether a process with this number still runs, whoever owns it. A process that has
// ended may wait for its parent for ever, above all in a container; in /proc its state is then Z.
func alive(pid int) bool {
	if err := syscall.Kill(pid, 0); err != nil && err != syscall.EPERM {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || !bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" Z"))
}
