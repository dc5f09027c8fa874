package main

import (
	"fmt"
	"path/filepath"
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
		Long:  "Draw a chart from a recording (.jsonl or .csv) that `gpumemtrack record` made, one that is still being made too.",
		Example: `  gpumemtrack chart run.jsonl                         # run.png
  gpumemtrack chart run.jsonl -o run.html --last 500`,
		Args: exactly(1, "the file of a recording"),
		RunE: func(_ *cobra.Command, args []string) error { return a.chart(args[0], o) },
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&o.outputs, "output", "o", nil, "a .png, .svg or .html file; may be repeated (default: FILE with .png)")
	flags.IntVar(&o.last, "last", 0, "only the last N samples of each series")
	flags.StringVar(&o.title, "title", "", "a title above the chart")
	flags.IntVar(&o.width, "width", 800, "width in pixels")
	flags.IntVar(&o.height, "height", 500, "height of the first panel in pixels")
	flags.BoolVarP(&o.force, "force", "f", false, "overwrite files")
	return cmd
}

func (a *app) chart(file string, o chartOptions) error {
	if o.last < 0 || o.width < 100 || o.height < 100 {
		return usageError("chart: --last cannot be negative, and a chart has 100 by 100 pixels at least")
	}
	if o.outputs == nil {
		o.outputs = []string{strings.TrimSuffix(file, filepath.Ext(file)) + ".png"}
	}
	rec, err := nvml.ReadFile(file)
	if err != nil {
		return err
	}
	cfg := chart.Config{Title: o.title, Last: o.last, Width: o.width, Height: o.height}
	return a.saveCharts(rec, cfg, o.outputs, o.force)
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
