package cli

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// App is what commands share: the arguments and the three streams. A command prints to these only, and
// writes files by WriteNew, NewLog and SaveCharts, so that no output is lost without an error.
type App struct {
	Args   []string
	Stdin  io.Reader
	Stdout *output
	Stderr io.Writer

	progress           *progress
	command            string      // that runs
	as                 string      // --as, the kind of the file
	maxFile, maxMemory alloc.Bytes // --max-file and --max-memory; 0 means the default
	topics             map[*cobra.Command][]Topic
}
