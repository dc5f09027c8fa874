package watch

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// reportGCPercent keeps the reports of the end from taking much more memory than the ledgers: what they allocate lives shortly.
const reportGCPercent = 20

// attachedEnd prints what is live at the end and what was at the peak, and writes the output file.
func attachedEnd(a *cli.App, w *attach.Watcher, tables io.Writer, o attachOptions, to *cli.Format) error {
	if err := w.Close(); err != nil {
		return err
	}
	debug.SetGCPercent(reportGCPercent)
	_ = o.writeReports(tables, w) // the writer keeps the error
	for _, d := range w.Warnings() {
		fmt.Fprintf(a.Stderr, "%s: %s\n", cli.ProgramName, d)
	}
	switch {
	case len(w.Sources()) == 0:
		return o.nothingSeen(a, w.DriverUse())
	case to == nil:
		return nil
	}
	r := w.Dump()
	write, err := cli.Writer(&files.File{Format: "dump", Usage: export.FromDump(r), Dump: r}, *to, -1)
	if err != nil {
		return err
	}
	return cli.WriteNew(o.output, o.force, write)
}

// attach --all: what it writes is bounded, however many processes there are.
const (
	mostTables  = 20 // at each interval
	mostReports = 10 // at the end
)

// writeAll prints what changed since the last time, of the sources with the highest peaks first. A process that has ended is printed once more. The
// error is the writer's.
func (o attachOptions) writeAll(to io.Writer, w *attach.Watcher) error {
	sources, tables, more := w.Sources(), 0, 0
	maps.DeleteFunc(o.written, func(s *attach.Source, _ bool) bool { return !slices.Contains(sources, s) })
	for _, s := range sources {
		if o.written[s] {
			continue
		}
		if !s.Ended().IsZero() {
			o.written[s] = true
		}
		if o.json != "" {
			if err := o.writeLine(to, s, o.written[s]); err != nil {
				return err
			}
			continue
		}
		m := s.Track()
		switch {
		case len(m.Delta) == 0:
			continue
		case tables == mostTables:
			more++
			continue
		}
		tables++
		if err := writeAttachedTable(to, s, m); err != nil {
			return err
		}
	}
	if more == 0 {
		return nil
	}
	_, err := fmt.Fprintf(to, "\nand %d processes and devices more, whose peaks are lower\n", more)
	return err
}

// writeReports writes the reports of the end: for people, of the sources with the highest peaks. The error is the writer's.
func (o attachOptions) writeReports(to io.Writer, w *attach.Watcher) error {
	all := w.Sources()
	shown := all
	if o.all && o.json == "" {
		shown = all[:min(len(all), mostReports)]
	}
	for _, s := range shown {
		var err error
		switch {
		case o.json == "":
			err = o.writeReport(to, s, all)
		case !o.written[s]:
			err = o.writeLine(to, s, true)
		}
		if err != nil {
			return err
		}
	}
	if o.json != "" {
		return nil
	}
	return writeRest(to, len(all)-len(shown), w.Dropped())
}

// writeLine writes a line of JSON, with the sums if it is the last one of a source.
func (o attachOptions) writeLine(to io.Writer, s *attach.Source, last bool) error {
	line := newAttachedMark(s)
	if last {
		line.End = sumsOf(s.LightSnapshot())
	}
	return cli.WriteJSON(to, line)
}

// writeReport writes what is live at the end and what was at the peak, in one Write.
func (o attachOptions) writeReport(to io.Writer, s *attach.Source, all []*attach.Source) error {
	var text strings.Builder
	if err := o.writeMark(&text, s); err != nil {
		return err
	}
	at := s.Snapshot()
	writeAttachedEnd(&text, s, at, blocksBeside(s, all, o.functions))
	writeAttachedPeak(&text, at, o.stacks)
	_, err := io.WriteString(to, text.String())
	return err
}

// writeRest says how much is in no report.
func writeRest(to io.Writer, sources, dropped int) (err error) {
	if sources > 0 {
		_, err = fmt.Fprintf(to, "\nand %d processes and devices more, whose peaks are lower: -o FILE has them\n", sources)
	}
	if dropped > 0 && err == nil {
		_, err = fmt.Fprintf(to, "\n%d processes that ended earlier are no longer known\n", dropped)
	}
	return err
}

// nothingSeen says that there was no allocation. That is a failure only for a process that was watched to
// write a file: a command has its own exit code.
func (o attachOptions) nothingSeen(a *cli.App, use attach.DriverUse) error {
	why := "attach: " + o.whyNothing(use)
	if o.output != "" {
		why += fmt.Sprintf(". %s was not written", o.output)
	}
	if len(o.command) == 0 && o.output == "" {
		fmt.Fprintf(a.Stderr, "%s: %s\n", cli.ProgramName, why)
		return nil
	}
	return errors.New(why)
}

// whyNothing says how far a program that allocated nothing came, and what may be wrong.
func (o attachOptions) whyNothing(use attach.DriverUse) string {
	if len(o.functions) > 0 {
		return noneOf(o.functions)
	}
	if o.all {
		return "no process of this machine allocated anything while all were watched"
	}
	if o.pid != 0 && use != attach.NotLoaded {
		return fmt.Sprintf("process %d allocated nothing while it was watched. What it allocated before is not known: gpumemtrack top says how much it holds", o.pid)
	}
	switch use {
	case attach.NotLoaded:
		if o.preload {
			return "nothing called the CUDA driver: no process loaded libcuda.so.1, or one loads it by a path, has an RPATH to it, or is setuid. Probes see these too: leave --preload out"
		}
		return "nothing called the CUDA driver: no process was seen to load libcuda.so.1. If one has a copy of its own, name that with --library"
	case attach.Loaded:
		return "libcuda was loaded, but the driver was not initialized: nothing was allocated"
	case attach.Initialized:
		return "the driver was initialized, but nothing was allocated"
	}
	return "the driver was used, but nothing was allocated"
}

// noneOf says what may be wrong with pairs of functions that allocated nothing. Pairs that have a name are
// known to be right. The warnings have said whether a library was found, and in time.
func noneOf(functions []string) string {
	text := fmt.Sprintf("no allocation by %s was seen", strings.Join(functions, " or "))
	if i := slices.IndexFunc(functions, func(f string) bool { return !strings.Contains(f, "/") }); i >= 0 {
		text += ". If the library was not found, or not in time, write its path"
		if !strings.Contains(functions[i], ":") {
			text += fmt.Sprintf(": --functions %s=FILE", functions[i])
		}
	}
	if slices.ContainsFunc(functions, func(f string) bool { return strings.Contains(f, ":") }) {
		text += ". If the function returns nothing or a struct, add void: ALLOC(out=N,void)"
	}
	return text
}

// writeAttachedEnd prints what is live at the end, with whole call stacks for the largest.
func writeAttachedEnd(w io.Writer, s *attach.Source, at *snapshot.Snapshot, beside blocks) {
	device, ordinal := s.Device()
	fmt.Fprintf(w, "\nAt the end of %v, %s [%d]: %s\n", s.Origin(), device, ordinal, attachedTotals(at))
	switch before := s.PriorBytes(); {
	case before > 0:
		fmt.Fprintf(w, "untracked before attach: %v, contexts included, as the driver said then\n", before)
	case before < 0:
		fmt.Fprintln(w, "untracked before attach: unknown, as the driver does not say what the process held then")
	}
	const most = 5
	live, others, _ := at.LargestStacks(liveOf, most)
	for _, one := range live {
		fmt.Fprintf(w, "\n%v, %v:\n", one.Tally, useOf(one.Kind, one.Memory))
		writeAttachedStack(w, one.Stack)
	}
	if others > 0 {
		fmt.Fprintf(w, "\nand %d call stacks more\n", others)
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

// writeAttachedPeak prints what was live at the peak if that was more than twice of what is live at the
// end: a line for each call stack, with whole stacks below if stacks is true.
func writeAttachedPeak(w io.Writer, s *snapshot.Snapshot, stacks bool) {
	if s.Peak.Bytes/2 <= s.Live.Bytes {
		return
	}
	fmt.Fprintf(w, "\nAt the peak, %v:\n", s.Peak)
	const most = 20
	largest, others, rest := s.LargestStacks(peakOf, most)
	for _, one := range largest {
		fmt.Fprintf(w, "%-26v | %5.1f %% | %-8v | %s\n", one.Tally, percentOf(one.Tally, s.Peak), useOf(one.Kind, one.Memory), lineOf(one))
		if stacks {
			writeAttachedStack(w, one.Stack)
			fmt.Fprintln(w)
		}
	}
	if others > 0 {
		fmt.Fprintf(w, "%-26v | %5.1f %% | %d call stacks more\n", rest, percentOf(rest, s.Peak), others)
	}
}

// lineOf names a call stack by the line of the user's code that allocated, and its callers. Notes that
// stand in place of frames are left out.
func lineOf(of snapshot.StackStats) string {
	path := slices.DeleteFunc(of.Stack.Path(), func(f mem.Frame) bool { return f.File == "" && strings.HasPrefix(f.Function, "(") })
	text := of.CallSite.String()
	if at := slices.Index(path, of.CallSite); at >= 0 && at+1 < len(path) {
		text += " <- " + path[at+1:].String()
	}
	return text
}

func percentOf(part, whole mem.Tally) float64 {
	return 100 * float64(part.Bytes) / float64(max(1, whole.Bytes))
}

func liveOf(t snapshot.Totals) mem.Tally  { return t.Live }
func peakOf(t snapshot.Totals) mem.Tally  { return t.Peak }
func totalOf(t snapshot.Totals) mem.Tally { return t.Total }

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
	const most = 256 // a cache's segments are large
	largest, _, _ := s.LargestStacks(totalOf, most)
	for _, one := range largest {
		for _, f := range one.Stack {
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
