package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	ExitFailed   = 1
	ExitUsage    = 2
	ExitUnfit    = 3
	ExitUnknown  = 4
	ExitNotRun   = 126 // the codes of shells
	ExitNotFound = 127
	ExitSignal   = 128 // plus the signal's number

	ProgramName = "gpumemtrack"
)

// codeOf returns the exit code of a command's error, and whether it is that of a program that it ran.
func codeOf(err error) (code int, ofChild bool) {
	if coded, ok := errors.AsType[*codedError](err); ok {
		return coded.code, coded.ofChild
	}
	if err != nil {
		return ExitFailed, false
	}
	return 0, false
}

// messages returns the texts of joined errors, with quiet without those of closed pipes.
func messages(err error, quiet bool) (all []string) {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok && err.Error() == errors.Join(joined.Unwrap()...).Error() {
		for _, one := range joined.Unwrap() {
			all = append(all, messages(one, quiet)...)
		}
		return all
	}
	if coded, ok := err.(*codedError); ok { //nolint:errorlint // an error around it says more
		return messages(coded.err, quiet)
	}
	if quiet && isClosedPipe(err) {
		return nil
	}
	return append(all, inPlainWords(err.Error()))
}

// isUnwritten reports whether an error is of a file that could not be written.
func isUnwritten(err error) bool {
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return true
	}
	_, ok := errors.AsType[*os.LinkError](err)
	return ok
}

// output is a stream that keeps its first error, so that no command needs to check each line that it
// prints. After an error it writes nothing more.
type output struct {
	io.Writer
	before func() // is called before each write

	mu  sync.Mutex
	err error
}

func (o *output) Write(b []byte) (n int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.before()
		n, o.err = o.Writer.Write(b)
	}
	return n, o.err
}

func (o *output) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// Underlying returns what the program was started with as this stream, for a program that inherits it.
func Underlying(stream io.Writer) io.Writer {
	if o, wrapped := stream.(*output); wrapped {
		return o.Writer
	}
	return stream
}

type codedError struct {
	code    int
	ofChild bool
	err     error
}

func (e *codedError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *codedError) Unwrap() error { return e.err }

// Exit returns an error that ends the program with this code. If err is nil, nothing is printed.
func Exit(code int, err error) error { return &codedError{code: code, err: err} }

// ExitAs returns an error that ends the program with the code of a program that it ran, whatever err is.
// Only where that code is 0, and a file or a stream could not be written, is the code ExitFailed.
func ExitAs(code int, err error) error { return &codedError{code, true, err} }

// UsageError returns the error of a command that was used wrongly.
func UsageError(format string, args ...any) error {
	return Exit(ExitUsage, fmt.Errorf(format, args...))
}

// Exactly checks that a command gets n arguments. The error says what they are, in the command's
// own words.
func Exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return UsageError("%s: name %s: see %s --help", cmd.Name(), what, cmd.CommandPath())
		}
		return nil
	}
}

// NoArgs checks that a command gets no arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return UsageError("%s: %q is one word too many: see %s --help", cmd.Name(), args[0], cmd.CommandPath())
	}
	return nil
}

// inPlainWords returns the text of an error on one line, without the words that Go has for a file that ends too early.
func inPlainWords(text string) string {
	const early = "unexpected EOF" // io.ErrUnexpectedEOF
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\n", "; "), "torn: "+early, "torn")
	return strings.ReplaceAll(text, early, "it ends too early")
}
