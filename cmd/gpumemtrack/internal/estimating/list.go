package estimating

import (
	"strconv"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

// listCommand is gpumemtrack estimate list.
func listCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the models that are known by name, with their sizes",
		Example: "  gpumemtrack estimate list",
		Args:    cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			t := cli.NewTable(a.Stdout, 1, "Name", "Parameters", "Weights", "As")
			for _, name := range zoo.Names() {
				m, err := zoo.ByName(name)
				if err != nil {
					return err
				}
				t.AppendRow(table.Row{name, inThousands(m.Params), alloc.Bytes(m.Params * int64(m.DType.Bits()) / 8), m.DType})
			}
			t.Render()
			return nil
		},
	}
}

// inThousands is a number of parameters as people say it: 8.03 B.
func inThousands(n int64) string {
	units := []string{"", " K", " M", " B", " T"}
	v, unit := float64(n), 0
	for v >= 1000 && unit < len(units)-1 {
		v, unit = v/1000, unit+1
	}
	return strconv.FormatFloat(v, 'f', min(unit, 2), 64) + units[unit]
}
