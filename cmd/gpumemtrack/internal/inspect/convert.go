package inspect

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
)

// Convert is gpumemtrack convert.
func Convert(a *cli.App) *cobra.Command {
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
devices, every format holds all of them, or the one of --device. An HTML page
opens with the device whose memory ran out, or with the one with most memory.`,
		Example: `  gpumemtrack convert crash.dump.json -o crash.html
  gpumemtrack convert pytorch.pickle -o pytorch.html
  gpumemtrack convert pytorch.pickle -o pytorch.pb.gz
  go tool pprof -http=: pytorch.pb.gz`,
		Args: cli.Exactly(1, "the file of a snapshot or dump"),
		RunE: func(_ *cobra.Command, args []string) error { return runConvert(a, args[0], o) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.output, "output", "o", "", "the `FILE` to write: .pb.gz, .pickle, .trace.json, .html or .json")
	flags.BoolVarP(&o.force, "force", "f", false, "overwrite the file")
	addDeviceFlag(cmd, &o.device)
	cli.AddInputFlags(a, cmd)
	return cmd
}

type convertOptions struct {
	output string
	force  bool
	device int // -1 means all
}

func runConvert(a *cli.App, input string, o convertOptions) error {
	if o.output == "" {
		return cli.UsageError("convert: name the file to write with -o")
	}
	to, ok := cli.FormatOf(o.output)
	if !ok {
		return cli.UsageError("convert: %s: want a name that ends in .pb.gz, .pickle, .trace.json, .html or .json", o.output)
	}
	f, err := cli.Open(a, input)
	if err != nil {
		return err
	}
	write, err := cli.Writer(f, to, o.device)
	if err == nil {
		err = cli.WriteNew(o.output, o.force, write)
	}
	if err != nil {
		return fmt.Errorf("convert %s: %w", input, err)
	}
	return nil
}
