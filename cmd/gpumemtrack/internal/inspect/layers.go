package inspect

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	line "github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

// layersSchema is the schema of layers --json.
const layersSchema = "gpumemtrack.layers/1"

// layerColumns lists the columns that a table of sections can be sorted by.
var layerColumns = []string{
	"tree", "path", "calls", "time", "gpu-time", "cpu-time", "rss", "heap", "allocated", "retained", "estimate", "difference",
	"peak", "self-peak", "live", "flops", "params", "inputs", "line",
}

// Layers is gpumemtrack layers.
func Layers(a *cli.App) *cobra.Command {
	var asJSON bool
	var sorted string
	cmd := &cobra.Command{
		Use:   "layers FILE|URL",
		Short: "Show what each section took, layer by layer",
		Long: `Show what each section of a program took, in a dump of a tracker or on the live
page of a running program: calls, times, what was allocated and retained, and
the highest level, with the estimate where the program gave one. The table is a
tree, in the order in which the sections began; --sort orders it by a column.
FILE may be - for standard input.

It has the sections that had ended. Other files than dumps have none.

--json prints one object: "schema", and "devices", each with "device" and its
"profile" as dump.schema.json describes it. Times are nanoseconds.`,
		Example: `  gpumemtrack layers crash.dump.json
  gpumemtrack layers http://localhost:6061/debug/gpumem/ --sort self-peak`,
		Args: cli.Exactly(1, "the file of a dump, or the URL of a live page"),
		RunE: func(_ *cobra.Command, args []string) error { return runLayers(a, args[0], sorted, asJSON) },
	}
	cmd.Flags().StringVar(&sorted, "sort", "tree", "the `COLUMN` to sort by, such as self-peak or time; tree keeps the order")
	cli.Complete(cmd, "sort", layerColumns...)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cli.AddInputFlags(a, cmd)
	return cmd
}

func runLayers(a *cli.App, word, sorted string, asJSON bool) error {
	if _, err := (sections.Profile{}).Sorted(sorted); err != nil {
		return cli.UsageError("--sort: %w", err)
	}
	f, dumps, err := openDevices(a, word)
	if err != nil {
		return err
	}
	found := []layersOf{}
	for _, d := range dumps {
		rows, err := d.Profile.Sorted(sorted)
		if err != nil {
			return err
		}
		if len(rows) > 0 {
			found = append(found, layersOf{export.Device(d.Snapshot), rows})
		}
	}
	if len(found) == 0 {
		return fmt.Errorf("%s: it has no sections that ended: a program opens them with tr.Do or tr.Section, and a dump has them", word)
	}
	if asJSON {
		return writeDevices(a, layersSchema, found)
	}
	fmt.Fprintf(a.Stdout, "sections that ended before the end of %s\n", describe(f.Usage, devices(f.Usage)))
	for _, its := range found {
		if len(found) > 1 {
			fmt.Fprintf(a.Stdout, "%s:\n", line.Line(its.Device))
		}
		if sorted == "tree" {
			fmt.Fprintln(a.Stdout, its.Profile.Tree())
		} else {
			fmt.Fprintln(a.Stdout, its.Profile)
		}
	}
	return nil
}

// layersOf holds the sections of a device.
type layersOf struct {
	Device  string           `json:"device"`
	Profile sections.Profile `json:"profile"`
}
