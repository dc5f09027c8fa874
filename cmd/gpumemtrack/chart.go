package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

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

func chartCommand(a *app) *cobra.Command {
	var o chartOptions
	cmd := &cobra.Command{
		Use:   "chart FILE",
		Short: "Draw a chart from a recording",
		Long:  "Draw a chart from a recording (.jsonl or .csv) of gpumemtrack record, which may\nstill be running.",
		Example: `  gpumemtrack chart run.jsonl                         # run.png
  gpumemtrack chart run.jsonl -o run.html --last 500`,
		Args: exactly(1, "the file of a recording"),
		RunE: func(_ *cobra.Command, args []string) error { return a.chart(args[0], o) },
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
	return cmd
}

func (a *app) chart(file string, o chartOptions) error {
	switch {
	case o.last < 0:
		return usageError("chart: --last cannot be negative")
	case min(o.width, o.height) < chart.MinPixels || max(o.width, o.height) > chart.MaxPixels:
		return usageError("chart: --width and --height take %d to %d pixels", chart.MinPixels, chart.MaxPixels)
	}
	if o.outputs == nil {
		o.outputs = []string{strings.TrimSuffix(file, filepath.Ext(file)) + ".png"}
	}
	for _, path := range o.outputs {
		if !isChart(path) {
			return usageError("chart: -o %s: a chart ends in .png, .svg or .html", path)
		}
	}
	rec, err := nvml.ReadFile(file)
	if err != nil {
		return withRightCommand(err, file)
	}
	for _, path := range o.outputs {
		if err := canCreate(path, o.force); err != nil {
			return err
		}
	}
	cfg := chart.Config{Title: o.title, Last: o.last, Width: o.width, Height: o.height}
	return a.saveCharts(rec, cfg, o.outputs, o.force)
}

func isChart(path string) bool {
	return slices.Contains(chart.Formats, strings.ToLower(filepath.Ext(path)))
}

func (a *app) saveCharts(rec nvml.Recording, cfg chart.Config, paths []string, force bool) error {
	if len(paths) == 0 {
		return nil
	}
	fig, err := chart.New(rec.Series, cfg)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if err := fig.Save(path, force); err != nil {
			return err
		}
		fmt.Fprintf(a.stderr, "chart: %s\n", path)
	}
	return nil
}
