package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/internal/inputs"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/explain"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
)

// Explain is gpumemtrack explain.
func Explain(a *cli.App) *cobra.Command {
	var at string
	var asJSON bool
	var device int
	cmd := &cobra.Command{
		Use:   "explain [FILE]",
		Short: "Explain why memory ran out or is pinned, and what would help",
		Long: `Explain an out-of-memory error: the text of one, or a log with it, of PyTorch,
JAX, TensorFlow, llama.cpp and others. Without FILE, paste the text. It tells
who has the device's memory, why the request failed, what would help, and which
advice of the message cannot.

Explain, for a dump or a memory snapshot of PyTorch, where reserved memory goes,
to the byte: what rounding costs, what the cache would give back, and what is
pinned between buffers, with the lines of code that keep it. Replays of the
history show what other settings, or another order, would have saved: see
gpumemtrack replay. FILE may be the URL of a live page, or - for standard input.

Of a log in which the allocator of TensorFlow, JAX or ONNX Runtime ran out of
memory, it tells what was asked for, whether the free memory was too little or
in pieces, and which chunks stand between these.

Of the log of an engine, such as vLLM, SGLang, llama.cpp or ollama, it tells
where the memory went by device, how many tokens and requests fit, why the
engine did not start, and what would help.

Of a text that XLA wrote for a program (--xla_dump_to), it tells what is live
at the peak, by instruction and line.

The account is that of the error if the file has one that the program did not
survive, and otherwise that of the end; --at names another moment. Savings are
measured from a replay with the recorded settings, which the output names.

For a directory, or a pattern in quotes, such as the dumps of the ranks of a
run, it prints a table of all processes, most pinned memory first, and then
explains the first of them. If there are several dumps of one process, the
latest counts. Of logs, it lists the error of each, and explains the first.`,
		Example: `  gpumemtrack explain error.txt     # "CUDA out of memory. Tried to ..."
  gpumemtrack explain crash.dump.json
  gpumemtrack explain oom.log       # of TensorFlow, JAX or ONNX Runtime
  gpumemtrack explain vllm.log
  gpumemtrack explain snapshot.pickle --at peak
  gpumemtrack explain ranks/`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return runExplain(a, cli.Pasted(a, args), device, at, asJSON)
		},
	}
	addMomentFlag(cmd, &at)
	addDeviceFlag(cmd, &device)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cli.AddInputFlags(a, cmd)
	return cmd
}

func runExplain(a *cli.App, word string, device int, at string, asJSON bool) error {
	if paths, err := expand(word); err == nil && (len(paths) > 1 || paths[0] != word) {
		return explainRanks(a, word, paths, device, at, asJSON)
	}
	in, err := cli.OpenInput(a, word)
	if err != nil {
		return err
	}
	defer in.Close()
	if in.Kind == inputs.XLADump {
		return showXLA(a, in, word, asJSON)
	}
	if in.IsLog() {
		return explainText(a, in, device, at, asJSON)
	}
	f, err := in.File()
	if err != nil {
		return err
	}
	return explainFile(a, f, word, device, at, asJSON)
}

// explainFile explains a dump, a snapshot or the log of an allocator.
func explainFile(a *cli.App, f *files.File, word string, device int, at string, asJSON bool) error {
	if len(f.Failures) > 0 {
		if _, err := statesAt(f, at); err != nil {
			return fmt.Errorf("%s: %w", word, err)
		}
		return explainLog(a, f.Failures, asJSON)
	}
	r, err := cli.DumpOf(f, word, device)
	if err != nil {
		return err
	}
	x, err := replay.Explain(r, at)
	if err != nil {
		return fmt.Errorf("%s: %w", word, err)
	}
	if asJSON {
		return cli.WriteObject(a.Stdout, "gpumemtrack.explain/2", x)
	}
	_, err = fmt.Fprint(a.Stdout, x)
	return err
}

// explainLog explains each failure in a log.
func explainLog(a *cli.App, failures []fmt.Stringer, asJSON bool) error {
	if asJSON {
		return cli.WriteJSON(a.Stdout, struct {
			Schema   string         `json:"schema"`
			Failures []fmt.Stringer `json:"failures"`
		}{"gpumemtrack.explain.log/1", failures})
	}
	for i, f := range failures {
		if i > 0 {
			fmt.Fprintln(a.Stdout)
		}
		fmt.Fprint(a.Stdout, f)
	}
	return nil
}

// explained is the account of one process of many. Its terms add up to Reserved: see
// explain.Explanation.
type explained struct {
	File        string          `json:"file"`
	Origin      snapshot.Origin `json:"origin"`
	Device      string          `json:"device"`
	Ordinal     int             `json:"ordinal"`
	Reserved    alloc.Bytes     `json:"reserved_bytes"`
	Requested   alloc.Bytes     `json:"requested_bytes"`
	Rounding    alloc.Bytes     `json:"rounding_bytes"`
	Unsplit     alloc.Bytes     `json:"unsplit_bytes"`
	Pending     alloc.Bytes     `json:"pending_bytes"`
	Reclaimable alloc.Bytes     `json:"reclaimable_bytes"`
	Pinned      alloc.Bytes     `json:"pinned_bytes"`
	Moment      rewind.Moment   `json:"moment"`

	time time.Time
}

// explainRanks explains many files: all in a table, and the one with most pinned memory in full.
func explainRanks(a *cli.App, word string, paths []string, device int, at string, asJSON bool) error {
	all, skipped, damaged, err := explainAll(a, paths, device, at)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return explainLogs(a, word, paths, asJSON)
	}
	if asJSON {
		return cli.WriteJSON(a.Stdout, struct {
			Schema    string        `json:"schema"`
			Processes []explained   `json:"processes"`
			Damaged   []damagedFile `json:"damaged_files,omitempty"`
		}{"gpumemtrack.explain.ranks/1", all, damaged})
	}
	moments := momentsOf(all, func(e explained) rewind.Moment { return e.Moment })
	heading := fmt.Sprintf("reserved memory at %s of %s", moments, count(len(all), "dump"))
	fmt.Fprintln(a.Stdout, strings.Join(append([]string{heading}, notRead(skipped, damaged)...), "; "))
	printDamaged(a.Stdout, damaged)
	explainTable(a, all)
	most := all[0]
	r, err := cli.OpenDump(a, most.File, device)
	if err != nil {
		return err
	}
	x, err := replay.Explain(r, at)
	if err != nil {
		return fmt.Errorf("%s: %w", most.File, err)
	}
	_, err = fmt.Fprintf(a.Stdout, "\nmost is pinned in %s:\n%v", most.name(), x)
	return err
}

// explainAll explains files, most pinned memory first. It keeps only the sums, however large the
// files are. Files that are not dumps are counted in skipped. If no file can be read, the error is
// the first file's.
func explainAll(a *cli.App, paths []string, device int, at string) (all []explained, skipped int, damaged []damagedFile, first error) {
	cli.Announce(a, paths)
	found, errs := make([]explained, len(paths)), make([]error, len(paths))
	pool := cli.NewPool(a)
	inParallel(len(paths), func(i int) {
		errs[i] = pool.Read(paths[i], func(f *files.File) (err error) {
			found[i], err = explainOne(f, paths[i], device, at)
			return err
		})
	})
	for i, err := range errs {
		switch {
		case err == nil:
			all = append(all, found[i])
		case errors.Is(err, files.ErrFormat), errors.Is(err, cli.ErrNoDump):
			skipped++
		default:
			first = cmp.Or(first, err)
			damaged = append(damaged, damage(paths[i], err))
		}
	}
	if len(all) == 0 {
		return nil, skipped, damaged, first
	}
	all, _ = latestOf(all, explained.process)
	slices.SortStableFunc(all, func(x, y explained) int { return cmp.Compare(y.Pinned, x.Pinned) })
	return all, skipped, damaged, nil
}

func explainOne(f *files.File, path string, device int, at string) (explained, error) {
	r, err := cli.DumpOf(f, path, device)
	if err != nil {
		return explained{}, err
	}
	s, moment, err := rewind.To(r, at)
	if err != nil {
		return explained{}, fmt.Errorf("%s: %w", path, err)
	}
	x := explain.Snapshot(s)
	return explained{
		File: path, Origin: r.Snapshot.Origin, Device: s.Device, Ordinal: s.Ordinal, time: r.Snapshot.Time,
		Reserved: x.Reserved, Requested: x.Requested, Rounding: x.Rounding, Unsplit: x.Unsplit,
		Pending: x.Pending, Reclaimable: x.Reclaimable, Pinned: x.Pinned, Moment: moment,
	}, nil
}

func (e explained) process() (process, time.Time) {
	return process{host: e.Origin.Host, program: e.Origin.Program, device: e.Device, pid: e.Origin.PID, ordinal: e.Ordinal}, e.time
}

// name returns the rank or, if there is none, the file.
func (e explained) name() string { return cmp.Or(rankName(e.Origin), e.File) }

func (e explained) row(name string) table.Row {
	return table.Row{name, e.Reserved, e.Requested, e.Rounding + e.Unsplit, e.Pending, e.Reclaimable, e.Pinned}
}

// explainTable prints the first processes, one line for all others, and the sum.
func explainTable(a *cli.App, all []explained) {
	const most = 20
	t := cli.MemoryTable("Rounding", "Process", "Reserved", "Requested", "Rounding", "Pending", "Reclaimable", "Pinned")
	var others, sum explained
	for i, e := range all {
		sum.add(e)
		if i < most {
			t.AppendRow(e.row(e.name()))
		} else {
			others.add(e)
		}
	}
	if len(all) > most {
		t.AppendRow(others.row(fmt.Sprintf("%d more", len(all)-most)))
	}
	t.AppendFooter(sum.row("all"))
	fmt.Fprint(a.Stdout, t.Fitted(cli.WidthOf(a.Stdout)))
}

func (e *explained) add(other explained) {
	e.Reserved += other.Reserved
	e.Requested += other.Requested
	e.Rounding += other.Rounding
	e.Unsplit += other.Unsplit
	e.Pending += other.Pending
	e.Reclaimable += other.Reclaimable
	e.Pinned += other.Pinned
}
