package inspect

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/nvml/chart"
	"github.com/gpumemtrack/gpumemtrack/nvml/recordings"
)

type chartOptions struct {
	outputs  []string
	last     int
	title    string
	force    bool
	width    int
	height   int
	interval time.Duration
	columns  string
}

// Chart is gpumemtrack chart.
func Chart(a *cli.App) *cobra.Command {
	var o chartOptions
	cmd := &cobra.Command{
		Use:   "chart FILE...",
		Short: "Draw a chart from a recording of any tool",
		Long: `Draw a chart from recordings of GPU memory, and print the peak of each GPU.

A recording is a file of gpumemtrack record, which may still be running, or the
output of another tool:
  nvidia-smi, with --query-gpu=... --format=csv (any columns), -q -x, dmon, pmon
  amd-smi metric and monitor, rocm-smi (--csv or --json)
  gpustat --json, nvitop's ResourceMetricCollector
It may be packed by gzip; - is standard input. Several files share one chart.
Times without a zone are local.`,
		Example: `  gpumemtrack chart run.jsonl                         # run.png
  gpumemtrack chart run.jsonl -o run.html --last 500
  gpumemtrack chart gpu.csv                           # of nvidia-smi
  gpumemtrack chart today.csv yesterday.csv.gz -o both.html
  nvidia-smi --query-gpu=timestamp,index,memory.used --format=csv -l 1 |
    gpumemtrack chart - -o gpu.png`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.UsageError("chart: name the file of a recording, or several: see gpumemtrack chart --help")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return runChart(a, args, o) },
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&o.outputs, "output", "o", nil, "a `FILE` that ends in .png, .svg or .html; may be repeated (default: the first recording's name with .png)")
	flags.IntVar(&o.last, "last", 0, "draw only the time of the last `N` samples")
	flags.StringVar(&o.title, "title", "", "a `TITLE` above the chart")
	flags.IntVar(&o.width, "width", 800, "width in `PIXELS`")
	flags.IntVar(&o.height, "height", 500, "height in `PIXELS`; each panel after the first adds a half")
	flags.DurationVar(&o.interval, "interval", 0, "the `TIME` between two samples of a file that has no times, such as 1s (default: the axis counts samples)")
	flags.StringVar(&o.columns, "columns", "", "the `NAMES` of the columns of a CSV without a header, as given to nvidia-smi --query-gpu")
	flags.BoolVarP(&o.force, "force", "f", false, "overwrite files")
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"jsonl", "csv", "json", "xml", "log", "txt", "gz"}, cobra.ShellCompDirectiveFilterFileExt
	}
	cli.AddInputFlags(a, cmd)
	return cmd
}

// The shortest and the longest side of a chart, as package chart has them.
const minPixels, maxPixels = 200, 10000

func runChart(a *cli.App, words []string, o chartOptions) error {
	switch {
	case o.last < 0:
		return cli.UsageError("chart: --last cannot be negative")
	case o.interval < 0:
		return cli.UsageError("chart: --interval cannot be negative")
	case min(o.width, o.height) < minPixels || max(o.width, o.height) > maxPixels:
		return cli.UsageError("chart: --width and --height take %d to %d pixels", minPixels, maxPixels)
	}
	if o.outputs == nil {
		o.outputs = []string{chartName(words[0])}
	}
	for _, path := range o.outputs {
		if !cli.IsChart(path) {
			return cli.UsageError("chart: -o %s: a chart ends in .png, .svg or .html", path)
		}
	}
	rec, notes, err := readRecordings(a, words, o)
	if err != nil {
		return err
	}
	for _, path := range o.outputs {
		if err := cli.CanCreate(path, o.force); err != nil {
			return err
		}
	}
	cfg := chart.Config{Title: o.title, Last: o.last, Numbered: rec.Numbered, Width: o.width, Height: o.height}
	if err := a.SaveCharts(rec, cfg, o.outputs, o.force); err != nil {
		if len(notes) > 0 {
			err = fmt.Errorf("%w (%s)", err, strings.Join(notes, "; "))
		}
		return err
	}
	cli.WriteRecording(a.Stdout, rec)
	for _, note := range notes {
		fmt.Fprintln(a.Stderr, note)
	}
	return nil
}

// chartName returns the default name of the chart of a recording.
func chartName(word string) string {
	if word == "-" {
		return "chart.png"
	}
	word = strings.TrimSuffix(word, ".gz")
	return strings.TrimSuffix(word, filepath.Ext(word)) + ".png"
}

// readRecordings reads the recordings and joins them. It returns what was assumed and left out, too.
func readRecordings(a *cli.App, words []string, o chartOptions) (joined nvml.Recording, notes []string, err error) {
	var recs []nvml.Recording
	var names []string
	for _, word := range words {
		file, err := readRecording(a, word, o)
		if err != nil {
			return nvml.Recording{}, nil, err
		}
		for _, note := range file.Notes {
			notes = append(notes, word+": "+text.Line(note))
		}
		if len(recs) > 0 && file.Recording.Numbered != recs[0].Numbered {
			return nvml.Recording{}, nil, cli.UsageError("chart: only one of %s and %s has times: say the time between samples of the other with --interval", words[0], word)
		}
		recs, names = append(recs, file.Recording), append(names, filepath.Base(word))
	}
	return nvml.Join(distinct(names, words), recs), notes, nil
}

func readRecording(a *cli.App, word string, o chartOptions) (*recordings.File, error) {
	in, err := cli.OpenInput(a, word)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	file, err := recordings.Read(in.Reader, recordings.Config{Interval: o.interval, Columns: o.columns})
	if err == nil {
		return file, nil
	}
	err = in.Error(err)
	if errors.Is(err, recordings.ErrFormat) {
		return nil, in.Unread(err)
	}
	return nil, err
}

// distinct returns the names, or the whole words where two names are the same.
func distinct(names, words []string) []string {
	seen := make(map[string]bool)
	for _, name := range names {
		if seen[name] {
			return words
		}
		seen[name] = true
	}
	return names
}
