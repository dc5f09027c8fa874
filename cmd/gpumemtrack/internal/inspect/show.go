package inspect

import (
	"cmp"
	"fmt"
	"iter"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	line "github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
)

// Show is gpumemtrack show.
func Show(a *cli.App) *cobra.Command {
	var o tableOptions
	var web string
	cmd := &cobra.Command{
		Use:   "show FILE...",
		Short: "Show what holds GPU memory, by line of code",
		Long: `Show what holds GPU memory in snapshots and dumps of a tracker, pprof profiles,
and memory snapshots of PyTorch. A directory means all such files in it; those
that are damaged are named and left out. If there are several snapshots of one
process, the latest counts. FILE may be - for standard input, or the URL of a
live page.

Of the log of an engine, such as vLLM, SGLang, llama.cpp or ollama, it shows
what each device holds and what fits; see gpumemtrack help inputs.

Live memory is that of the error if the file has one that the program did not
survive, and otherwise that of the end; --at names another moment.

For several files, such as those of the ranks of one run, it shows the sum, the
file with the most memory, and the spread: the difference between the most and
the least.

The table can be of a part of the memory, as --focus, --kind and others say; the
first line says how much that leaves out. --group sums up by names of your own.

--json prints one object: "schema", "by", "of", "host" with --host, "files"
with their "name", "devices", "time", "process" and "moment",
"older_snapshots", "other_files" and "damaged_files" that were left out,
"filter" with what was asked for and "filtered_out" with the "count" and
"bytes" that it leaves out, "lines", each with its "key", "bytes", "count" and,
of several files, "spread" ("most_bytes", "most_in", "bytes"), and "total", the
sum of all lines.`,
		Example: `  gpumemtrack show crash.dump.json
  gpumemtrack show snapshot.json --by shape --of peak
  gpumemtrack show http://localhost:6061/debug/gpumem/
  gpumemtrack show ranks/
  gpumemtrack show crash.pickle --ignore 'torch/optim' --by size
  gpumemtrack show crash.pickle --group attn='attn|Attention' --group mlp=MLP
  gpumemtrack show crash.dump.json --web
  gpumemtrack show ranks/ --web`,
		Args: atLeastOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			if web != "" {
				if err := checkWeb(cmd); err != nil {
					return err
				}
				return showPage(a, args, web)
			}
			if err := o.check(cmd); err != nil {
				return err
			}
			return runShow(a, args, o)
		},
	}
	o.flags(cmd)
	addWebFlag(cmd, &web)
	cli.AddInputFlags(a, cmd)
	return cmd
}

func atLeastOne(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cli.UsageError("%s: name a file: see %s --help", cmd.Name(), cmd.CommandPath())
	}
	return nil
}

// addWebFlag adds the flag that shows the page.
func addWebFlag(cmd *cobra.Command, address *string) {
	cmd.Flags().StringVar(address, "web", "", "serve a timeline of single allocations and open it in a browser, until Ctrl-C (at a free port of this machine unless `ADDRESS` names one: --web=localhost:8080)")
	cmd.Flags().Lookup("web").NoOptDefVal = "-"
	cli.Complete(cmd, "web")
}

// checkWeb refuses flags that the page ignores: it shows the complete files, at any moment.
func checkWeb(cmd *cobra.Command) error {
	var err error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "web" && f.Name != "as" && !cli.IsLimitFlag(f.Name) {
			err = cli.UsageError("show --web: --%s is for the table: the page shows the whole files, at every moment", f.Name)
		}
	})
	return err
}

func runShow(a *cli.App, words []string, o tableOptions) error {
	if len(words) == 1 {
		if done, err := showEngine(a, words[0], o); done || err != nil {
			return err
		}
	}
	if len(words) == 1 {
		go showEarly(a, words[0], o)
	}
	all, err := readProcesses(a, o, words...)
	if err != nil {
		return err
	}
	if err := o.filter.unknown(all.names()); err != nil {
		return err
	}
	read := all.processes
	for _, u := range read {
		if all.info[u].lacks {
			return fmt.Errorf("%s: it has only live memory, not %s memory: take a dump, or a PyTorch snapshot with events", u.Name, o.of)
		}
	}
	lines, sum := export.Compare(nil, read, o.sumBy(), o.of)
	names := processNames(read)
	shown, others := lines[:o.shown(len(lines))], lines[o.shown(len(lines)):]
	if o.json {
		return cli.WriteJSON(a.Stdout, shownJSON(all, shown, sum, names, o))
	}
	t := shownTable(shown, others, sum, names, o)
	fmt.Fprintf(a.Stdout, "%s memory %s%v\n", o.what(), cmp.Or(all.at(o), "of "), all)
	printDamaged(a.Stdout, all.damaged)
	if o.host && all.sum(hostOf).IsZero() {
		fmt.Fprintln(a.Stdout, noHost)
	} else {
		fmt.Fprint(a.Stdout, t.Fitted(cli.WidthOf(a.Stdout)))
	}
	printOmitted(a, all, o)
	return nil
}

func shownTable(shown, others []export.Line, sum export.Line, names []string, o tableOptions) *cli.Grid {
	t := linesTable(names, "Share", title(o.by), "Memory", "Count", "Share")
	for _, l := range shown {
		t.AppendRow(showRow(l, sum, names))
	}
	if len(others) > 0 {
		t.AppendRow(showRow(rest(others), sum, names))
	}
	sum.Key = "all"
	t.AppendFooter(showRow(sum, sum, names))
	return t
}

// showEarly shows on a terminal what is live at the end of a file, while its history is still read. It says nothing of a file
// that has that elsewhere, or cannot be read: the answer does.
func showEarly(a *cli.App, word string, o tableOptions) {
	if o.of != "live" || o.json || o.host || o.by == "kind" || o.by == "label" || o.filter.any() || o.at != "" && o.at != "end" {
		return
	}
	cli.ShowEarly(a, word, func(f *files.File) string {
		var p processInfo
		u, err := p.read(f, o)
		if err != nil {
			return ""
		}
		lines, sum := export.Compare(nil, []*export.Usage{u}, o.sumBy(), o.of)
		n := o.shown(len(lines))
		t := shownTable(lines[:n], lines[n:], sum, processNames([]*export.Usage{u}), o)
		return fmt.Sprintf("live memory at the end of %s, while its history is read\n%s", line.Line(word), t.Fitted(cli.WidthOf(a.Stdout)))
	})
}

const noHost = "no host memory: a tracker's dump has it if the tracker's device allocates it, and a snapshot of PyTorch if record_pinned_host_memory was set"

// printOmitted mentions what the table leaves out: why a request failed, the host memory, and damaged parts of the files.
func printOmitted(a *cli.App, r *processSet, o tableOptions) {
	for _, u := range r.processes {
		if n := r.info[u].broken; n > 0 {
			fmt.Fprintf(a.Stdout, "Not read, as their blocks do not tile them: %d of the segments of %s\n", n, line.Line(u.Name))
		}
	}
	if len(r.processes) == 1 && r.info[r.processes[0]].failed != "" {
		fmt.Fprintf(a.Stdout, "The error said: %s\n", line.Line(r.info[r.processes[0]].failed))
	}
	if host := r.sum(hostOf); !o.host && !host.IsZero() {
		fmt.Fprintf(a.Stdout, "Not in the table: %v of host memory, see --host\n", host)
	}
}

// lacks reports whether rows do not know what is asked for. Peak and total are never below live
// memory, so a file that has live memory but neither of them does not know them.
func lacks(rows iter.Seq[*export.Row], of string) bool {
	live, asked := false, false
	for r := range rows {
		live = live || !r.Live.IsZero()
		asked = asked || of == "peak" && !r.Peak.IsZero() || of == "total" && !r.Total.IsZero()
	}
	return of != "live" && live && !asked
}

func showRow(l, sum export.Line, names []string) table.Row {
	share := "-"
	if sum.After.Bytes != 0 {
		share = fmt.Sprintf("%.1f %%", 100*float64(l.After.Bytes)/float64(sum.After.Bytes))
	}
	row := table.Row{line.Line(l.Key), l.After.Bytes, l.After.Count, share}
	if len(names) > 1 {
		row = append(row, spreadCells(l, names)...)
	}
	return row
}

// shown is what show --json prints.
type shown struct {
	Schema string  `json:"schema"`
	By     string  `json:"by"`
	Of     string  `json:"of"`
	Host   bool    `json:"host,omitempty"`
	Filter *filter `json:"filter,omitempty"`
	shownFiles
	Lines []shownLine `json:"lines"`
	Total shownLine   `json:"total"`
}

type shownLine struct {
	Key    string      `json:"key"`
	Bytes  alloc.Bytes `json:"bytes"`
	Count  int64       `json:"count"`
	Spread *spreadJSON `json:"spread,omitempty"` // of several files
}

func shownJSON(r *processSet, lines []export.Line, sum export.Line, names []string, o tableOptions) shown {
	line := func(l export.Line) shownLine {
		return shownLine{Key: l.Key, Bytes: l.After.Bytes, Count: l.After.Count, Spread: spreadOf(l, names)}
	}
	out := shown{Schema: showSchema, By: o.by, Of: o.of, Host: o.host, Filter: o.filter.asked(), shownFiles: r.json(), Lines: []shownLine{}, Total: line(sum)}
	for _, l := range lines {
		out.Lines = append(out.Lines, line(l))
	}
	return out
}
