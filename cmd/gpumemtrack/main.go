// Command gpumemtrack watches GPU memory from outside a program, estimates what
// a model needs, and works on what package tracker writes. Run it with --help.
//
// It exits with 0 when it did what was asked, 1 when it could not, 2 when it was
// used wrongly, and 3 when the answer is no: estimate --fits when the model does not fit,
// replay when the history would not have fitted, diff --fail-over when memory grew by more;
// 4 when the answer is not known, as when a part of what estimate --fits compares is not counted.
// record and attach exit with the code of the command that they ran, 126 when it cannot be
// run, and 127 when it is not found; with 1 in place of 0 when an output of their own could not be
// written. Where the reader of the output has closed the pipe, the code is that of SIGPIPE, 141.
//
// internal/commands lists the commands and says where they are; internal/cli runs them.
package main

import (
	"os"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/commands"
)

// The linker sets these in a release, as in -X main.version=v0.1.0. In other builds they are empty.
var version, commit, date string

func main() {
	cli.SetRelease(cli.Build{Version: version, Commit: commit, Date: date})
	cli.OwnProcess()
	os.Exit(cli.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, commands.All...))
}
