package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/html"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/pprof"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/trace"
)

// formats are what convert writes, by the end of the file's name. Those that
// need a record can be made of snapshots and dumps only.
var formats = []struct {
	end    string
	record func(io.Writer, export.Record) error
	usage  func(io.Writer, *export.Usage) error
}{
	{end: ".pb.gz", usage: pprof.WriteUsage},
	{end: ".pickle", record: torch.Write},
	{end: ".trace.json", record: trace.Write},
	{end: ".html", record: html.Write},
}

func convertCommand(a *app) *cobra.Command {
	var output string
	var force bool
	cmd := &cobra.Command{
		Use:   "convert FILE -o OUTPUT",
		Short: "Write a snapshot or dump in the format of another viewer",
		Long: `Write a snapshot or dump of a tracker in the format of another viewer, by the end of
the output's name:

  .pb.gz        go tool pprof (of pprof profiles and PyTorch's snapshots too)
  .pickle       pytorch.org/memory_viz
  .trace.json   ui.perfetto.dev, chrome://tracing
  .html         any browser

What happened over time is in dumps only.`,
		Example: `  gpumemtrack convert crash.dump.json -o crash.html
  gpumemtrack convert pytorch.pickle -o pytorch.pb.gz && go tool pprof -http=: pytorch.pb.gz`,
		Args: exactly(1, "the file of a snapshot or dump"),
		RunE: func(_ *cobra.Command, args []string) error { return a.convert(args[0], output, force) },
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "the file to write: .pb.gz, .pickle, .trace.json or .html")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "overwrite the file")
	return cmd
}

func (a *app) convert(input, output string, force bool) error {
	if output == "" {
		return usageError("convert: name the file to write with -o")
	}
	for _, format := range formats {
		if !strings.HasSuffix(output, format.end) {
			continue
		}
		f, err := files.Open(input)
		if err != nil {
			return err
		}
		write := func(w io.Writer) error { return format.usage(w, f.Usage) }
		if format.usage == nil {
			if f.Record == nil {
				return fmt.Errorf("%s is a %s: only a snapshot or dump of a tracker has what a %s file needs", input, f.Format, format.end)
			}
			write = func(w io.Writer) error { return format.record(w, *f.Record) }
		}
		if err := writeNew(output, force, write); err != nil {
			return fmt.Errorf("convert %s: %w", input, err)
		}
		return nil
	}
	return usageError("convert: %s: want a name that ends in .pb.gz, .pickle, .trace.json or .html", output)
}

// writeNew writes a file that appears only when it is whole.
func writeNew(path string, force bool, write func(io.Writer) error) (err error) {
	if _, err := os.Lstat(path); err == nil && !force {
		return fmt.Errorf("%s is there already: --force overwrites it", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".gpumemtrack-*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if err := errors.Join(write(f), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
