package main

import (
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	line "github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
)

func showCommand(a *app) *cobra.Command {
	var o tableOptions
	cmd := &cobra.Command{
		Use:   "show FILE...",
		Short: "Show what holds GPU memory, by line of code",
		Long: `Show what holds GPU memory in snapshots and dumps of a tracker, pprof profiles,
and memory snapshots of PyTorch. A directory means all such files in it. If
there are several snapshots of one process, the latest counts. FILE may be - for
standard input, or the URL of a live page.

For several files, such as those of the ranks of one run, it shows the sum, the
file with the most memory, and the spread: the difference between the most and
the least.

--json prints one object: "schema", "by", "of", "files" with their "name",
"devices", "time" and "process", "older_snapshots" and "other_files" that were
left out, "lines", each with its "key", "bytes", "count" and, of several files,
"spread" ("most_bytes", "most_in", "bytes"), and "total", the sum of all lines.`,
		Example: `  gpumemtrack show crash.dump.json
  gpumemtrack show snapshot.json --by shape --of peak
  gpumemtrack show http://localhost:6061/debug/gpumem/
  gpumemtrack show ranks/`,
		Args: atLeastOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return a.show(args, o)
		},
	}
	o.flags(cmd)
	return cmd
}

func atLeastOne(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usageError("%s: name a file: see %s --help", cmd.Name(), cmd.CommandPath())
	}
	return nil
}

func (a *app) show(words []string, o tableOptions) error {
	all, err := a.readRanks(o.memory, words...)
	if err != nil {
		return err
	}
	read := all.processes
	if o.host {
		read = onHost(read)
	}
	if err := known(read, export.Of(o.of)); err != nil {
		return err
	}
	lines, sum := export.Compare(nil, read, export.By(o.by), export.Of(o.of))
	names := processNames(read)
	if o.json {
		return writeJSON(a.stdout, shownJSON(all, lines[:o.shown(len(lines))], sum, names, o))
	}
	heading := []any{title(o.by), "Memory", "Count", "Share"}
	if len(names) > 1 {
		heading = append(heading, "Most", "In", "Spread")
	}
	t := memoryTable("Share", heading...)
	for _, l := range lines[:o.shown(len(lines))] {
		t.AppendRow(showRow(l, sum, names))
	}
	if hidden := len(lines) - o.shown(len(lines)); hidden > 0 {
		t.AppendRow(showRow(rest(lines[o.shown(len(lines)):]), sum, names))
	}
	sum.Key = "all"
	t.AppendFooter(showRow(sum, sum, names))
	fmt.Fprintf(a.stdout, "%s memory of %v\n", o.of, all)
	fmt.Fprint(a.stdout, t.fitted(widthOf(a.stdout)))
	a.notShown(read, o)
	return nil
}

// onHost returns the same processes with the memory of the host that they hold.
func onHost(processes []*export.Usage) []*export.Usage {
	host := make([]*export.Usage, len(processes))
	for i, u := range processes {
		if u != nil {
			host[i] = u.OnHost()
		}
	}
	return host
}

// notShown tells of host memory, which a table of the device's has not.
func (a *app) notShown(read []*export.Usage, o tableOptions) {
	if o.host {
		return
	}
	if _, sum := export.Compare(nil, onHost(read), export.ByMemory, export.Of(o.of)); !sum.After.IsZero() {
		fmt.Fprintf(a.stdout, "Not in the table: %v in the host's memory, see --host\n", sum.After)
	}
}

// known refuses to sum up what a file does not tell. Peak and total are never less
// than what is live, so a file that has none of them does not know.
func known(read []*export.Usage, of export.Of) error {
	for _, u := range read {
		live, asked := false, false
		for _, r := range u.Rows {
			live = live || !r.Live.IsZero()
			asked = asked || of == export.OfPeak && !r.Peak.IsZero() || of == export.OfTotal && !r.Total.IsZero()
		}
		if of != export.OfLive && live && !asked {
			return fmt.Errorf("%s: it has only live memory, not %s memory: take a dump, or a PyTorch snapshot with events", u.Name, of)
		}
	}
	return nil
}

// memoryTable returns a table whose last line sums up the others. In a narrow
// terminal it goes without a share or a count, and without what tells processes apart.
func memoryTable(dropped string, heading ...any) *grid {
	t := newGrid(1, []string{dropped, "Count", "Spread", "In", "Most"}, heading...)
	t.Style().Format.Footer = text.FormatDefault
	for i := range t.columns[1:] {
		t.columns[i+1].AlignHeader, t.columns[i+1].AlignFooter = text.AlignRight, text.AlignRight
	}
	t.SetColumnConfigs(t.columns)
	return t
}

func showRow(l, sum export.Line, names []string) table.Row {
	share := "-"
	if sum.After.Bytes != 0 {
		share = fmt.Sprintf("%.1f %%", 100*float64(l.After.Bytes)/float64(sum.After.Bytes))
	}
	row := table.Row{line.Line(l.Key), l.After.Bytes, l.After.Count, share}
	if len(names) > 1 {
		row = append(row, ofRanks(l, names)...)
	}
	return row
}

// rest sums up the lines that are not printed.
func rest(lines []export.Line) export.Line {
	sum := export.Line{Key: fmt.Sprintf("%d more: see --top", len(lines))}
	for _, l := range lines {
		sum.Before = sum.Before.Add(l.Before)
		sum.After = sum.After.Add(l.After)
	}
	return sum
}

// ofRanks returns the cells that tell the ranks apart; of a line that sums up others, none.
func ofRanks(l export.Line, names []string) []any {
	rank, most := l.Worst()
	if rank < 0 {
		return []any{"", "", ""}
	}
	return []any{most.Bytes, names[rank], l.Spread()}
}

// processNames names files by their ranks, and those by their paths that have
// none or share one.
func processNames(read []*export.Usage) []string {
	names := make([]string, len(read))
	files := make(map[string]int)
	for i, u := range read {
		names[i] = rankName(u.Origin)
		files[names[i]]++
	}
	for i, u := range read {
		if names[i] == "" || files[names[i]] > 1 {
			names[i] = u.Name
		}
	}
	return names
}

// rankName returns "rank 3 on node-1"; "" if the rank is not known.
func rankName(o tracker.Origin) string {
	if o.Rank == nil {
		return ""
	}
	return tracker.Origin{Rank: o.Rank, Host: o.Host}.String()
}

// title makes a column's heading of a word.
func title(word string) string { return strings.ToUpper(word[:1]) + word[1:] }
