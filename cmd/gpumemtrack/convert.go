package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/userfile"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/html"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/pprof"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/trace"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// formats are what convert writes, by the end of the file's name: the first that fits.
var formats = []format{
	{end: ".pb.gz", usage: pprof.WriteUsage},
	{end: ".pickle", record: torch.Write, all: true},
	{end: ".trace.json", record: trace.Write, events: true, all: true},
	{end: ".html", record: html.Write},
	{end: ".json", record: func(w io.Writer, r *snapshot.Record) error { return r.WriteJSON(w) }, all: true},
}

// format writes a file of one or the other. Some consist of events, and of their times.
type format struct {
	end    string
	record func(io.Writer, *snapshot.Record) error
	usage  func(io.Writer, *export.Usage) error
	events bool
	all    bool // it holds all devices of a file
}

func convertCommand(a *app) *cobra.Command {
	var o convertOptions
	cmd := &cobra.Command{
		Use:   "convert FILE -o OUTPUT",
		Short: "Write a snapshot or dump in the format of another viewer",
		Long: `Write a snapshot or dump of a tracker, or a memory snapshot of PyTorch, in the
format of another viewer. The ending of the output's name decides which:

  .pb.gz        go tool pprof (of pprof profiles too)
  .pickle       pytorch.org/memory_viz
  .trace.json   ui.perfetto.dev, chrome://tracing
  .html         any browser
  .json         a dump, for this program

Only dumps and PyTorch's snapshots have a history. If a file has several
devices, every format holds all of them, except .html: it shows the device with
the most memory, or that of --device, and a line for each other device.`,
		Example: `  gpumemtrack convert crash.dump.json -o crash.html
  gpumemtrack convert pytorch.pickle -o pytorch.html
  gpumemtrack convert pytorch.pickle -o pytorch.pb.gz
  go tool pprof -http=: pytorch.pb.gz`,
		Args: exactly(1, "the file of a snapshot or dump"),
		RunE: func(_ *cobra.Command, args []string) error { return a.convert(args[0], o) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.output, "output", "o", "", "the `FILE` to write: .pb.gz, .pickle, .trace.json, .html or .json")
	flags.BoolVarP(&o.force, "force", "f", false, "overwrite the file")
	addDeviceFlag(cmd, &o.device)
	addMemoryFlag(cmd, &o.memory)
	return cmd
}

// addMemoryFlag adds the flag that raises the limit of what a file may take.
func addMemoryFlag(cmd *cobra.Command, limit *alloc.Bytes) {
	cmd.Flags().Var(sizeFlag{limit}, "max-memory", "the largest `SIZE` that a file may unpack to and take in memory (default: 1GiB)")
}

type convertOptions struct {
	output string
	force  bool
	device int         // -1 is the one with most memory
	memory alloc.Bytes // that a file may take; 0 is the usual
}

func (a *app) convert(input string, o convertOptions) error {
	if o.output == "" {
		return usageError("convert: name the file to write with -o")
	}
	for _, to := range formats {
		if !strings.HasSuffix(o.output, to.end) {
			continue
		}
		f, err := a.open(input, o.memory)
		if err != nil {
			return err
		}
		write, err := a.writer(f, to, o.device)
		if err == nil {
			err = writeNew(o.output, o.force, write)
		}
		if err != nil {
			return fmt.Errorf("convert %s: %w", input, err)
		}
		return nil
	}
	return usageError("convert: %s: want a name that ends in .pb.gz, .pickle, .trace.json, .html or .json", o.output)
}

// writer returns what writes the file in the format, or says what the file lacks.
func (a *app) writer(f *files.File, to format, device int) (func(io.Writer) error, error) {
	if to.usage != nil && device < 0 {
		return func(w io.Writer) error { return to.usage(w, f.Usage) }, nil
	}
	if f.Record == nil {
		return nil, fmt.Errorf("a %s has sums by call stack only: no single buffers, no segments and no events, which a %s file needs", f.Format, to.end)
	}
	r, err := deviceOf(f.Record, device)
	if err != nil {
		return nil, err
	}
	if device < 0 && len(f.Record.Others) > 0 && !to.all {
		fmt.Fprintf(a.stderr, "%s, the device with most memory of %d; --device names another\n", export.Device(r.Snapshot), 1+len(f.Record.Others))
	}
	switch {
	case to.usage != nil:
		return func(w io.Writer) error { return to.usage(w, export.FromSnapshot(r.Snapshot)) }, nil
	case to.events && (r.History == nil || r.History.Len() == 0):
		return nil, fmt.Errorf("the %s has no events, of which a %s file consists: %s", f.Format, to.end, whoHasEvents(f))
	case to.events && f.NoTimes:
		return nil, fmt.Errorf("the events of the %s have no times, which a %s file needs: PyTorch writes them since version 2.1. A .html file shows the events in their order", f.Format, to.end)
	}
	return func(w io.Writer) error { return to.record(w, r) }, nil
}

func whoHasEvents(f *files.File) string {
	if f.Format == files.PyTorch {
		return "call torch.cuda.memory._record_memory_history() at the program's start"
	}
	return "a dump has them"
}

// deviceOf returns the record of a device; of the record's own if it is -1.
func deviceOf(r *snapshot.Record, device int) (*snapshot.Record, error) {
	if device < 0 {
		return r, nil
	}
	all := append([]*snapshot.Record{r}, r.Others...)
	var have []string
	for _, of := range all {
		if of.Snapshot.Ordinal == device {
			alone := *of
			alone.Others = nil
			return &alone, nil
		}
		have = append(have, strconv.Itoa(of.Snapshot.Ordinal))
	}
	slices.Sort(have)
	return nil, fmt.Errorf("it has no device %d: want one of %s", device, strings.Join(have, ", "))
}

// writeNew writes a file that appears only when it is whole.
func writeNew(path string, force bool, write func(io.Writer) error) error {
	err := userfile.Write(path, force, write)
	if errors.Is(err, fs.ErrExist) {
		return existsError(path)
	}
	return err
}
