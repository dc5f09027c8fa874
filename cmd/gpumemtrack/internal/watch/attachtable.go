package watch

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

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
		text, err := json.Marshal(attachedMark{"gpumemtrack.attach/1", s.Origin(), device, ordinal, s.Before(), m})
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
	switch before := s.Before(); {
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
	fmt.Fprint(w, mem.Stack(slices.DeleteFunc(slices.Clone(stack), func(f mem.Frame) bool { return !isPython(f) })))
	fmt.Fprintln(w, "in C and C++:")
	fmt.Fprint(w, mem.Stack(slices.DeleteFunc(slices.Clone(stack), isPython)))
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
