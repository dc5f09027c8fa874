package watch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net"
	"net/http"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/internal/userfile"
	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

type attachOptions struct {
	output     string
	force      bool
	pid        int
	live       string
	hosts      []string
	every      time.Duration
	json       string // a file; "-" is standard output, "" means tables
	libraries  []string
	functions  []string
	preload    bool
	ringBuffer alloc.Bytes
	command    []string
}

// Attach is gpumemtrack attach.
func Attach(a *cli.App) *cobra.Command {
	var o attachOptions
	cmd := &cobra.Command{
		Use:   "attach [flags] [-- COMMAND ARG...]",
		Short: "Watch any program's GPU memory, without changing it",
		Long: `Watch what a program, in any language, allocates from the CUDA driver, and which
lines of code allocate it: a command and the processes that it starts, or with
--pid a running process and those that it will start. It prints a table of what
was allocated and freed at each --every, and at the end a table of what is still
live. The exit code is the command's.

It needs Linux 5.8 or newer on amd64 or arm64, and root, or CAP_BPF, CAP_PERFMON
and CAP_SYS_PTRACE. Each call that allocates or frees takes some microseconds
longer, also in other programs that use the same libcuda. --preload needs no
privileges but a C compiler: the command then loads a small library that
intercepts the calls to libcuda.

It sees what the driver sees. A program with its own cache, such as PyTorch,
allocates large segments now and then: --functions pytorch shows what is in
them.`,
		Example: `  sudo gpumemtrack attach -- ./train --epochs 3
  sudo gpumemtrack attach -o leak.html --every 1m --pid 4711`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 0 && len(args) > 0 {
				return cli.UsageError("attach: write -- before the command to run: gpumemtrack attach -- %s", strings.Join(args, " "))
			}
			o.command = args
			return runAttach(a, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.output, "output", "o", "", "a `FILE` to write at the end: .dump.json, .html, .pb.gz, .pickle or .trace.json")
	flags.BoolVarP(&o.force, "force", "f", false, "overwrite the file")
	flags.IntVar(&o.pid, "pid", 0, "watch process `PID` from now on")
	flags.StringVar(&o.live, "live", "", "serve a live page, dumps and Prometheus metrics at this `ADDRESS`, such as localhost:8080")
	flags.StringArrayVar(&o.hosts, "allow-host", nil, "let --live answer requests for this host `NAME`, such as gpu-7.example.com; * is any; may be repeated")
	flags.DurationVar(&o.every, "every", 10*time.Second, "`TIME` between tables; 0 prints only the last one")
	addJSONFlag(flags, &o.json, "print each table as a line of JSON; with a command, into this `FILE`")
	flags.StringArrayVar(&o.libraries, "library", nil, "the `FILE` of a libcuda to watch; may be repeated (default: the one that a program on this machine loads)")
	flags.StringArrayVar(&o.functions, "functions", nil, "a `PAIR` of functions to watch instead of the driver's, such as 'libpool.so:take(size=2,out=3),give(address=1)' or one of "+strings.Join(attach.Pairs(), ", ")+"; may be repeated")
	flags.Var(cli.SizeFlag(&o.ringBuffer), "ring-buffer", "memory for calls that were not read yet, as a `SIZE`: a larger one loses none of a program with very many calls (default 64MiB)")
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
	case o.pid == 0 && len(o.command) == 0:
		return nil, cli.UsageError("attach: name a process with --pid, or a command after --")
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

func runAttach(a *cli.App, o attachOptions) (err error) {
	to, err := o.check()
	if err != nil {
		return err
	}
	path, err := findCommand(o.command)
	if err != nil {
		return err
	}
	cfg := o.config()
	if driver, err := nvml.Open(); err == nil { // without one, what the devices hold is unknown
		defer driver.Close()
		cfg.Driver = driver
	}
	w, err := attach.New(cfg)
	if errors.Is(err, fs.ErrInvalid) {
		return cli.UsageError("attach: --functions: %s", strings.TrimPrefix(err.Error(), "attach: "))
	}
	if err != nil {
		return err
	}
	defer w.Close()
	if o.live != "" {
		stop, err := serveAttached(a, o.live, o.hosts, w)
		if err != nil {
			return err
		}
		defer stop()
	}
	tables, err := o.tables(a)
	if err != nil {
		return err
	}
	code := 0
	if o.pid != 0 {
		err = attachTo(w, tables, o)
	} else {
		code, err = attachToCommand(a, w, tables, o, path)
	}
	if err == nil {
		err = attachedEnd(a, w, tables, o, to)
	}
	err = errors.Join(err, tables.Close())
	if code != 0 {
		return cli.Exit(code, err)
	}
	return err
}

// tables returns where the tables go. Standard output belongs to the command that runs, so its
// tables go to stderr, or as JSON to a file.
func (o attachOptions) tables(a *cli.App) (io.WriteCloser, error) {
	switch {
	case o.json != "" && o.json != "-":
		return userfile.Create(o.json, o.force)
	case o.pid != 0:
		return nopCloser{a.Stdout}, nil
	}
	return nopCloser{a.Stderr}, nil
}

// nopCloser is a writer whose Close does nothing.
type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// attachTo watches a process until it ends, or until Ctrl+C.
func attachTo(w *attach.Watcher, tables io.Writer, o attachOptions) error {
	ctx, cancel := signal.NotifyContext(context.Background(), cli.StopSignals()...)
	defer cancel()
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

// attachToCommand runs a command and watches it.
func attachToCommand(a *cli.App, w *attach.Watcher, tables io.Writer, o attachOptions, path string) (code int, err error) {
	child, err := startChild(a, path, o.command, w.Start)
	if err != nil {
		return 0, err
	}
	child.watch()
	attachedTables(child.ended, w, tables, o)
	return child.wait(), nil
}

// attachedTables prints the tables until ctx is done.
func attachedTables(ctx context.Context, w *attach.Watcher, to io.Writer, o attachOptions) {
	if o.every == 0 {
		<-ctx.Done()
		return
	}
	ticker := time.NewTicker(o.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.Sync()
			for _, s := range w.Sources() {
				writeAttachedMark(to, s, s.Track(), o.json != "")
			}
		}
	}
}

// attachedEnd prints what is live at the end, and writes the output file.
func attachedEnd(a *cli.App, w *attach.Watcher, tables io.Writer, o attachOptions, to *cli.Format) error {
	if err := w.Close(); err != nil {
		return err
	}
	for _, s := range w.Sources() {
		writeAttachedMark(tables, s, s.Track(), o.json != "")
		if o.json == "" {
			writeAttachedEnd(tables, s, blocksBeside(s, w.Sources(), o.functions))
		}
	}
	for _, d := range w.Warnings() {
		fmt.Fprintf(a.Stderr, "%s: %s\n", cli.ProgramName, d)
	}
	r := w.Dump()
	if r == nil {
		return nothingSeen(o.functions)
	}
	if to == nil {
		return nil
	}
	write, err := cli.Writer(&files.File{Format: "dump", Usage: export.FromDump(r), Dump: r}, *to, -1)
	if err != nil {
		return err
	}
	return cli.WriteNew(o.output, o.force, write)
}

// nothingSeen returns the error of a run without an allocation, with what may be wrong. Pairs that have
// a name are known to be right. The warnings have said whether a library was found, and in time.
func nothingSeen(functions []string) error {
	if len(functions) == 0 {
		return errors.New("attach: nothing called the CUDA driver: is libcuda.so.1 the one that the program loads? --library names another")
	}
	text := fmt.Sprintf("attach: no allocation by %s was seen", strings.Join(functions, " or "))
	if i := slices.IndexFunc(functions, func(f string) bool { return !strings.Contains(f, "/") }); i >= 0 {
		text += ". If the library was not found, or not in time, write its path"
		if !strings.Contains(functions[i], ":") {
			text += fmt.Sprintf(": --functions %s=FILE", functions[i])
		}
	}
	if slices.ContainsFunc(functions, func(f string) bool { return strings.Contains(f, ":") }) {
		text += ". If the function returns nothing or a struct, add void: ALLOC(out=N,void)"
	}
	return errors.New(text)
}

// serveAttached serves what is watched as a live page until stop is called.
func serveAttached(a *cli.App, address string, hosts []string, w *attach.Watcher) (stop func(), err error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("attach: --live: %w", err)
	}
	server := &http.Server{Handler: attachedHandler(w, hosts), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintf(a.Stderr, "%s: attach: --live: %v\n", cli.ProgramName, err)
		}
	}()
	fmt.Fprintf(a.Stderr, "live: http://%s/\n", listener.Addr())
	return func() { server.Close() }, nil
}

func attachedHandler(w *attach.Watcher, hosts []string) http.Handler {
	return live.Several(func() iter.Seq2[string, live.Source] {
		return func(yield func(string, live.Source) bool) {
			w.Sync()
			for _, s := range w.Sources() {
				if !yield(s.Name(), s) {
					return
				}
			}
		}
	}, hosts...)
}

// attachedMark is a mark as a line of JSON.
type attachedMark struct {
	Schema  string          `json:"schema"`
	Process snapshot.Origin `json:"process"`
	Device  string          `json:"device"`
	Ordinal int             `json:"ordinal"`
	Before  alloc.Bytes     `json:"before_bytes"` // held before watching began; -1 means unknown
	Mark    *snapshot.Mark  `json:"mark"`
}

// writeAttachedMark prints what changed since the previous mark. There is a table only if anything
// changed.
func writeAttachedMark(w io.Writer, s *attach.Source, m *snapshot.Mark, asJSON bool) {
	device, ordinal := s.Device()
	if asJSON {
		text, err := json.Marshal(attachedMark{"gpumemtrack.attach/1", s.Origin(), device, ordinal, s.PriorBytes(), m})
		if err != nil {
			text = []byte(fmt.Sprintf("{\"error\": %q}", err))
		}
		fmt.Fprintf(w, "%s\n", text)
		return
	}
	lines := changesByLine(m.Delta)
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s | %v, %s [%d] | %v live\n", m.Time.Format("15:04:05"), s.Origin(), device, ordinal, m.Live.Add(m.Host()))
	const most = 40
	for _, l := range lines[:min(len(lines), most)] {
		fmt.Fprintf(w, "%-26s | %-8v | %v\n", signedTally(l.Tally), l.use, l.Frame)
	}
	if rest := len(lines) - most; rest > 0 {
		fmt.Fprintf(w, "and %d lines of code more\n", rest)
	}
}

// signedTally prints a change. The number of buffers may shrink while their bytes grow.
func signedTally(t mem.Tally) string {
	return fmt.Sprintf("%+d, %s", t.Count, cli.Signed(t.Bytes))
}

type lineChange struct {
	mem.CallSiteTally
	use string
}

// useOf returns the kind of buffers or, if only the program knows it, the type of their memory.
func useOf(g snapshot.Group) string {
	if g.Kind == "" && g.Memory != alloc.UnknownMemory {
		return g.Memory.String()
	}
	return g.Kind.String()
}

// changesByLine lists changes by line of code: first those that grew, the largest first.
func changesByLine(d snapshot.Delta) (all []lineChange) {
	for _, c := range d {
		for _, site := range c.CallSites {
			all = append(all, lineChange{site, useOf(c.Group)})
		}
	}
	slices.SortStableFunc(all, func(x, y lineChange) int {
		if x.Bytes > 0 != (y.Bytes > 0) {
			return cmp.Compare(y.Bytes, x.Bytes)
		}
		return cmp.Or(cmp.Compare(max(y.Bytes, -y.Bytes), max(x.Bytes, -x.Bytes)), cmp.Compare(x.File, y.File), cmp.Compare(x.Line, y.Line), cmp.Compare(x.Function, y.Function), cmp.Compare(x.use, y.use))
	})
	return all
}

// writeAttachedEnd prints what is live at the end, with whole call stacks for the largest.
func writeAttachedEnd(w io.Writer, s *attach.Source, beside blocks) {
	device, ordinal := s.Device()
	at := s.Snapshot()
	fmt.Fprintf(w, "\nAt the end of %v, %s [%d]: %s\n", s.Origin(), device, ordinal, attachedTotals(at))
	switch before := s.PriorBytes(); {
	case before > 0:
		fmt.Fprintf(w, "untracked before attach: %v, contexts included, as the driver said then\n", before)
	case before < 0:
		fmt.Fprintln(w, "untracked before attach: unknown")
	}
	const most = 5
	live := liveByStack(at)
	for _, s := range live[:min(len(live), most)] {
		fmt.Fprintf(w, "\n%v, %v:\n", s.Tally, s.use)
		writeAttachedStack(w, s.stack)
	}
	if rest := len(live) - most; rest > 0 {
		fmt.Fprintf(w, "\nand %d call stacks more\n", rest)
	}
	if name, instead := cacheOf(at, beside); name != "" {
		fmt.Fprintf(w, "\nThese are segments of %s, which has its own cache: %s shows what is in them.\n", name, instead)
	}
	for _, suspect := range leaks.Suspects(at) {
		fmt.Fprintf(w, "\nsuspect: %v\n", suspect)
	}
	for _, growth := range leaks.Growing(at) {
		fmt.Fprintf(w, "\ngrowth: %v\n", growth)
	}
}

// writeAttachedStack prints a call stack. Python lines come first, as dozens of PyTorch's own
// functions lie below each of them.
func writeAttachedStack(w io.Writer, stack mem.Stack) {
	isPython := func(f mem.Frame) bool { return strings.HasSuffix(f.File, ".py") }
	if !slices.ContainsFunc(stack, isPython) || !slices.ContainsFunc(stack, func(f mem.Frame) bool { return strings.Contains(f.File, "libtorch_python") }) {
		fmt.Fprint(w, stack)
		return
	}
	fmt.Fprint(w, slices.DeleteFunc(slices.Clone(stack), func(f mem.Frame) bool { return !isPython(f) }))
	fmt.Fprintln(w, "in C and C++:")
	fmt.Fprint(w, slices.DeleteFunc(slices.Clone(stack), isPython))
}

// stackTally is the live memory of one call stack, in buffers of any size.
type stackTally struct {
	mem.Tally
	use   string
	stack mem.Stack
}

// liveByStack lists the live buffers by call stack, the most bytes first.
func liveByStack(s *snapshot.Snapshot) (all []stackTally) {
	index := make(map[string]int)
	for _, l := range leaks.Live(s) {
		use := useOf(l.Group)
		key := use + "\n" + l.Stack.String()
		at, ok := index[key]
		if !ok {
			at = len(all)
			index[key] = at
			all = append(all, stackTally{use: use, stack: l.Stack})
		}
		all[at].Tally = all[at].Tally.Add(l.Tally)
	}
	slices.SortStableFunc(all, func(x, y stackTally) int { return cmp.Compare(y.Bytes, x.Bytes) })
	return all
}

// attachedTotals prints live memory and, for a device, peak and total. For host memory these are
// not known.
func attachedTotals(s *snapshot.Snapshot) string {
	if s.Total.IsZero() {
		return fmt.Sprintf("%v live", s.Host())
	}
	of := ""
	if s.Reserved > s.Allocated {
		of = fmt.Sprintf(" of %v reserved", s.Reserved)
	}
	return fmt.Sprintf("%v live%s; peak %v; in all %v", s.Live, of, s.Peak, s.Total)
}

// blocks says whether the blocks of PyTorch's cache are watched in addition to its segments.
type blocks uint8

const (
	unwatched blocks = iota
	unseen
	seen
)

// blocksBeside finds out whether another source watches the blocks in this source's segments.
func blocksBeside(s *attach.Source, all []*attach.Source, functions []string) blocks {
	for _, other := range all {
		if device, _ := other.Device(); other.Origin().PID == s.Origin().PID && areBlocks(device) {
			return seen
		}
	}
	isPyTorch := func(pair string) bool { return pair == "pytorch" || strings.HasPrefix(pair, "pytorch=") }
	if slices.ContainsFunc(functions, isPyTorch) {
		return unseen
	}
	return unwatched
}

func areBlocks(device string) bool { return strings.Contains(device, "blocks") }

// cacheOf returns the name of the caching allocator whose segments these are, according to the call
// stacks, and what would show the buffers in them; "" if there is none.
func cacheOf(s *snapshot.Snapshot, beside blocks) (name, instead string) {
	if areBlocks(s.Device) {
		return "", "" // they are the blocks in the segments
	}
	for site := range s.CallSites() {
		for _, f := range site.Stack {
			switch {
			case strings.Contains(f.File, "libc10_cuda"), strings.Contains(f.File, "libc10_hip"):
				return "PyTorch", [...]string{
					unwatched: "--functions pytorch, or torch.cuda.memory._snapshot(),",
					unseen:    "torch.cuda.memory._snapshot()",
					seen:      "the table of PyTorch's blocks",
				}[beside]
			case strings.Contains(f.File, "libonnxruntime_providers_cuda"):
				return "ONNX Runtime", "its log of the arena (ORT_LOGGING_LEVEL_VERBOSE)"
			case strings.HasPrefix(f.Function, "github.com/gpumemtrack/gpumemtrack/alloc/cache.(*Cache)"):
				return "gpumemtrack's Cache", "tracker/live"
			}
		}
	}
	return "", ""
}
