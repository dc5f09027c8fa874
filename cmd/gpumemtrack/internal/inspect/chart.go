package inspect

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/nvml/chart"
)

type chartOptions struct {
	outputs []string
	last    int
	title   string
	force   bool
	width   int
	height  int
}

// Chart is gpumemtrack chart.
func Chart(a *cli.App) *cobra.Command {
	var o chartOptions
	cmd := &cobra.Command{
		Use:   "chart FILE",
		Short: "Draw a chart from a recording",
		Long:  "Draw a chart from a recording (.jsonl or .csv) of gpumemtrack record, which may\nstill be running.",
		Example: `  gpumemtrack chart run.jsonl                         # run.png
  gpumemtrack chart run.jsonl -o run.html --last 500`,
		Args: cli.Exactly(1, "the file of a recording"),
		RunE: func(_ *cobra.Command, args []string) error { return runChart(a, args[0], o) },
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&o.outputs, "output", "o", nil, "a `FILE` that ends in .png, .svg or .html; may be repeated (default: the recording's name with .png)")
	flags.IntVar(&o.last, "last", 0, "draw only the time of the last `N` samples")
	flags.StringVar(&o.title, "title", "", "a `TITLE` above the chart")
	flags.IntVar(&o.width, "width", 800, "width in `PIXELS`")
	flags.IntVar(&o.height, "height", 500, "height in `PIXELS`; each panel after the first adds a half")
	flags.BoolVarP(&o.force, "force", "f", false, "overwrite files")
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"jsonl", "csv"}, cobra.ShellCompDirectiveFilterFileExt
	}
	cli.AddAsFlag(a, cmd)
	return cmd
}

// The shortest and the longest side of a chart, as package chart has them.
const minPixels, maxPixels = 200, 10000

func runChart(a *cli.App, file string, o chartOptions) error {
	switch {
	case o.last < 0:
		return cli.UsageError("chart: --last cannot be negative")
	case min(o.width, o.height) < minPixels || max(o.width, o.height) > maxPixels:
		return cli.UsageError("chart: --width and --height take %d to %d pixels", minPixels, maxPixels)
	}
	if o.outputs == nil {
		o.outputs = []string{strings.TrimSuffix(file, filepath.Ext(file)) + ".png"}
	}
	for _, path := range o.outputs {
		if !cli.IsChart(path) {
			return cli.UsageError("chart: -o %s: a chart ends in .png, .svg or .html", path)
		}
	}
	if err := cli.CheckFile(a, file); err != nil {
		return err
	}
	rec, err := nvml.ReadFile(file)
	if err != nil {
		return err
	}
	for _, path := range o.outputs {
		if err := cli.CanCreate(path, o.force); err != nil {
			return err
		}
	}
	cfg := chart.Config{Title: o.title, Last: o.last, Width: o.width, Height: o.height}
	return a.SaveCharts(rec, cfg, o.outputs, o.force)
}
