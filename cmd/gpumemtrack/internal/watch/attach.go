package watch

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os/signal"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/push"
	"github.com/gpumemtrack/gpumemtrack/internal/userfile"
	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach"
)

type attachOptions struct {
	output     string
	force      bool
	pid        int
	all        bool
	live       string
	otlp       string
	hosts      []string
	every      time.Duration
	json       string // a file; "-" is standard output, "" means tables
	libraries  []string
	functions  []string
	preload    bool
	stacks     bool
	ringBuffer alloc.Bytes
	command    []string
	written    map[*attach.Source]bool // by --all: processes that have ended, with what was written last
}

// Attach is gpumemtrack attach.
func Attach(a *cli.App) *cobra.Command {
	var o attachOptions
	cmd := &cobra.Command{
		Use:   "attach [flags] [-- COMMAND ARG...]",
		Short: "Watch any program's GPU memory, without changing it",
		Long: `Watch what a program, in any language, allocates from the CUDA driver, and which
lines of code allocate it: a command and the processes that it starts, with
--pid a running process and those that it will start, or with --all every
process of the machine, in any container. It prints a table of what was
allocated and freed at each --every. At the end it prints what is still live,
with call stacks, and what was live at the peak, by line, if that was much more.
The exit code is the command's.

It needs Linux 5.8 or newer on amd64 or arm64, and root, or CAP_BPF, CAP_PERFMON
and CAP_SYS_PTRACE. Each call that allocates or frees takes some microseconds
longer, also in other programs that use the same libcuda. --preload needs no
privileges but a C compiler: the command then loads a small library that
intercepts the calls to libcuda.

It sees what the driver sees. A program with its own cache, such as PyTorch,
allocates large segments now and then: --functions pytorch shows what is in
them.`,
		Example: `  gpumemtrack attach --preload -- python train.py
  sudo gpumemtrack attach -- ./train --epochs 3
  sudo gpumemtrack attach -o leak.html --every 1m --pid 4711
  sudo gpumemtrack attach --all --every 0 --live localhost:8080`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 0 && len(args) > 0 {
				return cli.UsageError("attach: write -- before the command to run: gpumemtrack attach -- %s", strings.Join(args, " "))
			}
			o.command, o.written = args, make(map[*attach.Source]bool)
			return runAttach(a, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.output, "output", "o", "", "a `FILE` to write at the end: .dump.json, .html, .pb.gz, .pickle or .trace.json")
	flags.BoolVarP(&o.force, "force", "f", false, "overwrite the file")
	flags.IntVar(&o.pid, "pid", 0, "watch process `PID` from now on")
	flags.BoolVar(&o.all, "all", false, "watch every process of the machine, now and later")
	flags.StringVar(&o.live, "live", "", "serve a live page, dumps and Prometheus metrics at this `ADDRESS`, such as localhost:8080")
	push.AddFlag(cmd, &o.otlp, "metrics, and profiles by call stack,")
	flags.StringArrayVar(&o.hosts, "allow-host", nil, "let --live answer requests for this host `NAME`, such as gpu-7.example.com; * is any; may be repeated")
	flags.DurationVar(&o.every, "every", 10*time.Second, "`TIME` between tables; 0 prints only the last one")
	addJSONFlag(flags, &o.json, "print each table as a line of JSON; with a command, into this `FILE`")
	flags.StringArrayVar(&o.libraries, "library", nil, "the `FILE` of a libcuda to watch; may be repeated (default: the one that a program on this machine loads)")
	flags.StringArrayVar(&o.functions, "functions", nil, "a `PAIR` of functions to watch instead of the driver's, such as 'libpool.so:take(size=2,out=3),give(address=1)' or one of "+strings.Join(attach.Pairs(), ", ")+"; may be repeated")
	flags.Var(cli.SizeFlag(&o.ringBuffer), "ring-buffer", "memory for calls that were not read yet, as a `SIZE`: a larger one loses none of a program with very many calls (default 64MiB)")
	flags.BoolVar(&o.stacks, "stacks", false, "print the call stacks of the peak at the end, not only their lines")
	flags.BoolVar(&o.preload, "preload", false, "load a small library in front of libcuda instead of setting probes: for a command only, needs a C compiler but no privileges")
	return cmd
}

// config returns the options for package attach.
func (o attachOptions) config() attach.Config {
	return attach.Config{Libraries: o.libraries, Functions: o.functions, Preload: o.preload, RingBufferBytes: int(o.ringBuffer)}
}

// check returns the format of the output file. The error says what is wrong with the options,
// before anything has begun.
func (o attachOptions) check() (to *cli.Format, err error) {
	switch {
	case o.pid == 0 && !o.all && len(o.command) == 0:
		return nil, cli.UsageError("attach: name a process with --pid, or a command after --; --all is every process of the machine")
	case o.all && (o.pid != 0 || len(o.command) > 0):
		return nil, cli.UsageError("attach: --all is every process: not with --pid, nor with a command")
	case o.all && o.preload:
		return nil, cli.UsageError("attach: --preload is for a command: --all needs probes")
	case o.pid != 0 && len(o.command) > 0:
		return nil, cli.UsageError("attach: either --pid, or a command: not both")
	case o.pid != 0 && o.preload:
		return nil, cli.UsageError("attach: --preload is for a command: a process that runs cannot be given a library")
	case o.preload && len(o.functions) > 0:
		return nil, cli.UsageError("attach: --functions needs probes: not with --preload")
	case len(o.hosts) > 0 && o.live == "":
		return nil, cli.UsageError("attach: --allow-host is for --live ADDRESS, which is not given")
	case o.preload && o.ringBuffer != 0:
		return nil, cli.UsageError("attach: --ring-buffer is for probes: not with --preload")
	case o.ringBuffer != 0 && (o.ringBuffer < 64*alloc.KiB || o.ringBuffer > alloc.GiB):
		return nil, cli.UsageError("attach: --ring-buffer %v: want 64KiB to 1GiB", o.ringBuffer)
	case o.pid < 0 || o.every < 0:
		return nil, cli.UsageError("attach: --pid and --every cannot be negative")
	}
	if err := checkJSON("attach", o.json, o.command, o.force); err != nil || o.output == "" {
		return nil, err
	}
	format, ok := cli.FormatOf(o.output)
	if !ok {
		return nil, cli.UsageError("attach: -o %s: want a name that ends in .dump.json, .html, .pb.gz, .pickle or .trace.json", o.output)
	}
	return &format, cli.CanCreate(o.output, o.force)
}

func runAttach(a *cli.App, o attachOptions) error {
	to, err := o.check()
	if err != nil {
		return err
	}
	path, err := findCommand(a, "attach", o.command)
	if err != nil {
		return err
	}
	cfg := o.config()
	if driver, err := nvml.Open(); err == nil { // without one, what the devices hold is unknown
		defer driver.Close()
		cfg.Driver = driver
	}
	// The memory of a program with very many buffers should not be needed twice. Most of what is collected are snapshots.
	defer debug.SetGCPercent(debug.SetGCPercent(50))
	w, err := attach.New(cfg)
	if errors.Is(err, fs.ErrInvalid) {
		return cli.UsageError("attach: --functions: %s", strings.TrimPrefix(err.Error(), "attach: "))
	}
	if err != nil {
		return err
	}
	defer w.Close()
	if o.live != "" {
		handler := attachedHandler(w, o.hosts)
		if o.all {
			handler = allHandler(w, o.hosts)
		}
		stop, err := serveAttached(a, o.live, handler)
		if err != nil {
			return err
		}
		defer stop()
	}
	if o.otlp != "" {
		stop, err := pushAttached(a, w, o.otlp)
		if err != nil {
			return err
		}
		defer stop()
	}
	return watchAttached(a, w, o, to, path)
}

// watchAttached watches the process or the command, and prints and writes what was seen.
func watchAttached(a *cli.App, w *attach.Watcher, o attachOptions, to *cli.Format, path string) (err error) {
	tables, file, err := o.tables(a)
	if err != nil {
		return err
	}
	if len(o.command) == 0 {
		err = attachTo(w, tables, o)
	} else {
		var child *child
		child, err = startChild(a, path, o.command, w.Start)
		if err == nil {
			child.watch()
			attachedTables(child.ended, w, tables, o)
			defer func() { err = cli.ExitAs(child.wait(), err) }()
		}
	}
	if err != nil { // nothing was watched
		if file != nil {
			err = errors.Join(err, file.Discard())
		}
		return err
	}
	err = attachedEnd(a, w, tables, o, to)
	if file != nil {
		err = errors.Join(err, file.Close())
	}
	return err
}

// tables returns where the tables go. Standard output belongs to the command that runs, so its
// tables go to stderr, or as JSON to a file.
func (o attachOptions) tables(a *cli.App) (to io.Writer, file *userfile.Log, err error) {
	switch {
	case o.json != "" && o.json != "-":
		file, err = cli.NewLog(o.json, o.force)
		return file, file, err
	case len(o.command) == 0:
		return a.Stdout, nil, nil
	}
	return a.Stderr, nil, nil
}

// attachTo watches a process until it ends, or every process, until Ctrl+C.
func attachTo(w *attach.Watcher, tables io.Writer, o attachOptions) error {
	ctx, cancel := signal.NotifyContext(context.Background(), cli.StopSignals()...)
	defer cancel()
	if o.all {
		if err := w.WatchAll(); err != nil {
			return err
		}
		attachedTables(ctx, w, tables, o)
		return nil
	}
	if err := w.Watch(o.pid); err != nil {
		return err
	}
	ctx, gone := context.WithCancel(ctx)
	defer gone()
	go func() {
		waitGone(ctx, o.pid)
		gone()
	}()
	attachedTables(ctx, w, tables, o)
	return nil
}

// attachedTables prints the tables until ctx is done, or until they cannot be written and nothing
// else is wanted of a process that runs anyway.
func attachedTables(ctx context.Context, w *attach.Watcher, to io.Writer, o attachOptions) {
	if o.every == 0 {
		<-ctx.Done()
		return
	}
	onlyTables := len(o.command) == 0 && o.output == "" && o.live == "" && o.otlp == ""
	ticker := time.NewTicker(o.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.Sync()
			if err := o.writeMarks(to, w); err != nil && onlyTables {
				return
			}
		}
	}
}

// writeMarks prints what changed in each source since the mark before. The error is the writer's first.
func (o attachOptions) writeMarks(to io.Writer, w *attach.Watcher) (err error) {
	if o.all {
		return o.writeAll(to, w)
	}
	for _, s := range w.Sources() {
		err = cmp.Or(err, o.writeMark(to, s))
	}
	return err
}
