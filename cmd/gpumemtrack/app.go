package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// app is what commands share: the three streams.
type app struct {
	stdin  io.Reader
	stdout *output
	stderr io.Writer
}

// output is a stream that remembers that it could not be written to, so that no
// command needs to look after each line.
type output struct {
	io.Writer
	err error
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.Writer.Write(b)
	if o.err == nil {
		o.err = err
	}
	return n, err
}

// Exit codes.
const (
	exitFailed   = 1
	exitUsage    = 2
	exitUnfit    = 3
	exitNotRun   = 126 // as shells have it
	exitNotFound = 127
	exitSignal   = 128 // and the signal's number

	programName = "gpumemtrack"
)

// codedError is an error with an exit code of its own. Without an error there
// is nothing to say.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *codedError) Unwrap() error { return e.err }

func usageError(format string, args ...any) error {
	return &codedError{exitUsage, fmt.Errorf(format, args...)}
}

// exactly is an Args that says what is missing, in the command's own words.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError("%s: name %s: see %s --help", cmd.Name(), what, cmd.CommandPath())
		}
		return nil
	}
}

func none(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError("%s: %q is one word too many: see %s --help", cmd.Name(), args[0], cmd.CommandPath())
	}
	return nil
}
