package inspect

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	line "github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// leaksSchema is the schema of leaks --json.
const leaksSchema = "gpumemtrack.leaks/1"

// Leaks is gpumemtrack leaks.
func Leaks(a *cli.App) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "leaks FILE|URL",
		Short: "Show the lines of code that look as if they leak",
		Long: `Show which lines of code look as if they leak, in a snapshot or dump of a
tracker, a snapshot of PyTorch or the live page of a running program: lines with
buffers that look forgotten, since others of the line are freed much younger,
and lines that hold ever more old buffers, of which nobody knows yet whether
there is a bound. FILE may be - for standard input.

Both go by the ages at which buffers were freed, from the start of the program
to the end of the file; in a snapshot of PyTorch, from its first event. Growth
shows after half a minute. A file without events, or whose events have no times,
does not say how long freed buffers lived: compare two with gpumemtrack diff.

--json prints one object: "schema", and "devices", each with "device",
"suspects" and "growth". Their durations are nanoseconds.`,
		Example: `  gpumemtrack leaks crash.dump.json
  gpumemtrack leaks http://localhost:6061/debug/gpumem/`,
		Args: cli.Exactly(1, "the file of a dump, or the URL of a live page"),
		RunE: func(_ *cobra.Command, args []string) error { return runLeaks(a, args[0], asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cli.AddInputFlags(a, cmd)
	return cmd
}

func runLeaks(a *cli.App, word string, asJSON bool) error {
	f, dumps, err := openDevices(a, word)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(dumps, func(d *snapshot.Dump) bool { return leaks.CanTell(d.Snapshot) }) {
		return fmt.Errorf("%s is a %s that does not say how long freed buffers lived: %s", word, f.Format, withLifetimes(f))
	}
	found := make([]leaksOf, len(dumps))
	for i, d := range dumps {
		found[i] = leaksOf{ // never null
			export.Device(d.Snapshot),
			append([]leaks.Suspect{}, leaks.Suspects(d.Snapshot)...),
			append([]leaks.Suspect{}, leaks.Growing(d.Snapshot)...),
		}
	}
	if asJSON {
		return writeDevices(a, leaksSchema, found)
	}
	fmt.Fprintf(a.Stdout, "leaks at the end of %s\n", describe(f.Usage, devices(f.Usage)))
	for _, its := range found {
		its.print(a, len(found) > 1)
	}
	return nil
}

// withLifetimes is what to do about a file that does not say how long freed buffers lived.
func withLifetimes(f *files.File) string {
	if f.Format == "PyTorch snapshot" {
		return "call torch.cuda.memory._record_memory_history() at the start (PyTorch 2.1 and later), or compare two files with " + cli.ProgramName + " diff"
	}
	return "take a dump of a tracker, or compare two files with " + cli.ProgramName + " diff"
}

// leaksOf holds what looks like a leak on a device.
type leaksOf struct {
	Device   string          `json:"device"`
	Suspects []leaks.Suspect `json:"suspects"`
	Growth   []leaks.Suspect `json:"growth"`
}

func (l leaksOf) print(a *cli.App, named bool) {
	if named {
		fmt.Fprintf(a.Stdout, "%s:\n", line.Line(l.Device))
	}
	for _, suspect := range l.Suspects {
		fmt.Fprintln(a.Stdout, suspect)
	}
	for _, growth := range l.Growth {
		fmt.Fprintln(a.Stdout, growth)
	}
	if len(l.Suspects)+len(l.Growth) == 0 {
		fmt.Fprintln(a.Stdout, "nothing looks forgotten, and no line holds ever more old buffers")
	}
}
