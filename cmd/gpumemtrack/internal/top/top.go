// Package top has the commands that show what happens now: sensors and top. They only read.
package top

import (
	"context"
	"fmt"
	"os/signal"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
)

type topOptions struct {
	source   string
	pages    []string
	interval time.Duration
	once     bool
	json     bool
	all      bool
}

// Command is gpumemtrack top.
func Command(a *cli.App) *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch GPUs, processes, and the lines of code that hold memory",
		Long: `Watch the GPUs, the processes that have memory on them, and, for programs that
serve a live page (tracker/live, or gpumemtrack attach --live), the lines of
code that hold the most memory and those that may leak. It only reads.

Keys: q quits; up and down (or k and j) select a process; a attaches to it, as
gpumemtrack attach does, and shows the lines of code that allocate from then on;
m, p, g and c sort by memory, process number, GPU and command; r reverses the
order; space pauses; ? shows help.

--once prints one screen as text, and --json one object: "schema", "time",
"source", "error" if the driver did not answer, "devices" as sensors --json has
them, each with "processes" ("pid", "memory_bytes", "command", "user",
"container", "age_seconds", "cpu_percent" of one processor and "sm_percent" of
the GPU's multiprocessors, each null where it is unknown) and
"processes_error", and "pages": "url", "error" or "process", "device",
"live_bytes", "peak_bytes", "call_sites" ("call_site", "bytes", "count") and
"suspects" (text).`,
		Example: `  gpumemtrack top
  gpumemtrack top --live http://localhost:6061/debug/gpumem/
  gpumemtrack top --once`,
		Args: cli.NoArgs,
		RunE: func(*cobra.Command, []string) error { return runTop(a, o) },
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&o.pages, "live", nil, "the `URL` of a program's live page; may be repeated")
	flags.DurationVar(&o.interval, "interval", time.Second, "`TIME` between updates")
	flags.BoolVar(&o.once, "once", false, "print one screen as text")
	flags.BoolVar(&o.json, "json", false, "print one sample as JSON")
	flags.BoolVar(&o.all, "all", false, "show devices that CUDA_VISIBLE_DEVICES hides too")
	cli.AddSourceFlag(cmd, &o.source)
	return cmd
}

func runTop(a *cli.App, o topOptions) error {
	if o.interval < cli.MinInterval {
		return cli.UsageError("top: --interval %v: the shortest is %v", o.interval, cli.MinInterval)
	}
	for _, page := range o.pages {
		if !cli.IsURL(page) {
			return cli.UsageError("top: --live %s: want a URL such as http://localhost:6061/debug/gpumem/", page)
		}
	}
	_, onScreen := cli.Terminal(a.Stdout)
	if !o.once && !o.json && !onScreen {
		return cli.UsageError("top: the output is not a terminal: --once prints one screen, --json one sample")
	}
	src, devices, err := open(o.source, o.all)
	if err != nil {
		return err
	}
	defer cli.CloseSoon(src)
	ctx, cancel := signal.NotifyContext(context.Background(), cli.StopSignals()...)
	defer cancel()
	w := newTopWatch(src, devices, o.pages)
	if o.once || o.json {
		return topOnce(ctx, a, w, o)
	}
	go w.run(ctx, o.interval)
	return topScreen(ctx, w, o.interval)
}

// topOnce prints one sample.
func topOnce(ctx context.Context, a *cli.App, w *topWatch, o topOptions) error {
	w.sample(ctx)
	sample := w.latest()
	if o.json {
		return cli.WriteJSON(a.Stdout, topJSON(sample))
	}
	width := cli.WidthOf(a.Stdout)
	if width <= 0 {
		width = 100
	}
	for _, l := range topText(sample, width) {
		fmt.Fprintln(a.Stdout, l.text())
	}
	return nil
}
