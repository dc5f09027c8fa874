// Package demo has the command that runs an example on a simulated GPU, with everything on.
package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/watch"
	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/nvml/chart"
)

type demoOptions struct {
	dir   string
	force bool
	pause time.Duration
}

// Command is gpumemtrack demo.
func Command(a *cli.App) *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "A first look, on a simulated GPU: report, chart and table",
		Long: `Run the example of gpu_mem_track for PyTorch on a simulated GPU, with everything
on: the tracker's report, a recording, its table and its charts.`,
		Example: `  gpumemtrack demo
  gpumemtrack demo --dir out -f`,
		Args: cli.NoArgs,
		RunE: func(*cobra.Command, []string) error { return runDemo(a, o) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.dir, "dir", "gpumemtrack-demo", "`DIRECTORY` for the files, created if it is missing")
	flags.BoolVarP(&o.force, "force", "f", false, "overwrite files")
	flags.DurationVar(&o.pause, "pause", 400*time.Millisecond, "`TIME` between steps, so that the chart has something to show")
	if err := cmd.MarkFlagDirname("dir"); err != nil {
		panic(err) // the command has no such flag
	}
	return cmd
}

func runDemo(a *cli.App, o demoOptions) (err error) {
	if o.pause < 0 {
		return cli.UsageError("demo: --pause cannot be negative")
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return fmt.Errorf("demo: %w: name a directory that may be written, with --dir", err)
	}
	gpu, err := sim.New(sim.Config{})
	if err != nil {
		return err
	}
	defer gpu.Close()
	charts := []string{filepath.Join(o.dir, "memory.png"), filepath.Join(o.dir, "memory.html")}
	cfg := nvml.Config{
		Source: nvml.FromDevices(gpu), Interval: cli.MinInterval,
		Files: []string{filepath.Join(o.dir, "memory.jsonl")}, Overwrite: o.force,
	}
	if err := watch.CheckRecording(&cfg, charts); err != nil {
		return err
	}
	rec, err := nvml.NewRecorder(cfg)
	if err != nil {
		return err
	}
	err = rec.Record(context.Background(), func(context.Context) error {
		return vgg19(gpu, o.dir, o.pause, a.Stdout)
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(a.Stdout)
	cli.WriteRecording(a.Stdout, rec.Recording())
	fmt.Fprintf(a.Stderr, "report: %s\n", filepath.Join(o.dir, "*-gpu_mem_track.txt"))
	fmt.Fprintf(a.Stderr, "samples: %s\n", rec.Files()[0])
	return a.SaveCharts(rec.Recording(), chart.Config{Title: "VGG19's features, on a simulated GPU"}, charts, o.force)
}
