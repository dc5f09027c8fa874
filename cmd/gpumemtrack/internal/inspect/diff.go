package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	line "github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
)

type diffOptions struct {
	tableOptions
	failOver      alloc.Bytes
	missingAsZero bool
}

// Diff is gpumemtrack diff.
func Diff(a *cli.App) *cobra.Command {
	var o diffOptions
	cmd := &cobra.Command{
		Use:   "diff BEFORE AFTER",
		Short: "Show what grew and shrank between two runs, by line of code",
		Long: `Show what grew and shrank between two runs, by line of code. BEFORE and AFTER
are snapshots and dumps of a tracker, pprof profiles, or memory snapshots of
PyTorch.

Each side is a file, or many files, such as those of the ranks of a run: a
directory, or a pattern in quotes. Files of the same rank are paired. If a file
has no rank, or two have the same, files are paired in the order of their names.
If there are several snapshots of one process, the latest counts. Other files
are skipped, and damaged ones too if each file has its rank. The output says
what was left out. The table shows the sum of the pairs, the pair that grew
most, and the spread between the largest and the smallest change. Live memory is
that of the error or the end of each file: see gpumemtrack show.

A process that only one side has is listed and not counted; with
--missing-as-zero it is compared with zero.

With --fail-over the exit code is 3 if memory grew by more than that in any
pair.

The table can be of a part of the memory, as --focus, --kind and others say.
--fail-over goes by that part, then.

--json prints one object: "schema", "by", "of", "host" with --host, "filter"
with what was asked for, "before" and "after" with their "files" and
"filtered_out", "only_before" and "only_after" with processes that do not
count, "lines", each with its "key", "before_bytes", "after_bytes",
"change_bytes", "before_count", "after_count" and, of several pairs, "spread",
and "total", the sum of all lines.`,
		Example: `  gpumemtrack diff yesterday.json today.json
  gpumemtrack diff yesterday.json today.json --fail-over 64MiB    # for CI
  gpumemtrack diff 'old/rank*.pb.gz' 'new/rank*.pb.gz' --by function
  gpumemtrack diff yesterday.json today.json --section step --kind Activation`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return cli.UsageError("diff: name what to compare, before and after: see %s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return runDiff(a, args[0], args[1], o, cmd.Flags().Changed("fail-over"))
		},
	}
	o.flags(cmd)
	cmd.Flags().Var(cli.SizeFlag(&o.failOver), "fail-over", "exit with 3 if memory grew by more than `SIZE`, such as 64MiB")
	cmd.Flags().BoolVar(&o.missingAsZero, "missing-as-zero", false, "compare a process that only one side has with zero")
	cli.AddInputFlags(a, cmd)
	return cmd
}

func runDiff(a *cli.App, before, after string, o diffOptions, gate bool) error {
	old, err := readProcesses(a, o.tableOptions, before)
	if err != nil {
		return err
	}
	now, err := readProcesses(a, o.tableOptions, after)
	if err != nil {
		return err
	}
	known := old.names()
	known.join(now.names())
	if err := o.filter.unknown(known); err != nil {
		return err
	}
	if !o.json {
		fmt.Fprintf(a.Stdout, "%s memory\n  before: %s%v\n  after:  %s%v\n", o.what(), old.at(o.tableOptions), old, now.at(o.tableOptions), now)
		printDamaged(a.Stdout, slices.Concat(old.damaged, now.damaged))
	}
	from, to := old.processes, now.processes
	if !old.file || !now.file {
		var byPlace bool
		from, to, byPlace = pair(from, to)
		if damaged := slices.Concat(old.damaged, now.damaged); byPlace && len(damaged) > 0 {
			return fmt.Errorf("%s: %s: the files do not tell their ranks, so they pair in order, and none may be left out", damaged[0].Name, damaged[0].Error)
		}
	}
	var onlyBefore, onlyAfter []*export.Usage
	if !o.missingAsZero {
		from, to, onlyBefore, onlyAfter = onOneSide(from, to)
		missing(a, "before", onlyBefore, o)
		missing(a, "after", onlyAfter, o)
		if len(from) == 0 {
			return errNoPair
		}
	}
	names := pairNames(from, to)
	lines, sum := export.Compare(from, to, o.sumBy(), o.of)
	if o.json {
		err = diffJSON(a, old, now, onlyBefore, onlyAfter, changed(lines), sum, names, o)
	} else {
		diffTable(a, changed(lines), sum, names, o)
	}
	if err != nil {
		return err
	}
	if grown, err := overLimit(sum, names, o.failOver); gate && grown {
		return err
	}
	return nil
}

// pair pairs the processes of two runs, for export.Compare. Processes are paired by rank, if all
// have one, and by device if a rank has several. If ranks do not identify the processes of a run,
// they are paired by their order. A process without a partner is paired with nil.
func pair(before, after []*export.Usage) (pairedBefore, pairedAfter []*export.Usage, byPlace bool) {
	for _, withDevice := range []bool{false, true} {
		old, now := byRank(before, withDevice), byRank(after, withDevice)
		if old == nil || now == nil {
			continue
		}
		for _, u := range before {
			pairedBefore = append(pairedBefore, u)
			pairedAfter = append(pairedAfter, now[placeOf(u, withDevice)])
		}
		for _, u := range after {
			if old[placeOf(u, withDevice)] == nil {
				pairedBefore = append(pairedBefore, nil)
				pairedAfter = append(pairedAfter, u)
			}
		}
		return pairedBefore, pairedAfter, false
	}
	n := max(len(before), len(after))
	return padded(before, n), padded(after, n), true
}

// place identifies a process in its run.
type place struct {
	rank   int
	device string
}

func placeOf(u *export.Usage, withDevice bool) place {
	p := place{rank: *u.Origin.Rank}
	if withDevice {
		p.device = deviceOf(u)
	}
	return p
}

// byRank returns the processes by place, or nil if two have the same place.
func byRank(run []*export.Usage, withDevice bool) map[place]*export.Usage {
	of := make(map[place]*export.Usage, len(run))
	for _, u := range run {
		if u.Origin.Rank == nil || of[placeOf(u, withDevice)] != nil {
			return nil
		}
		of[placeOf(u, withDevice)] = u
	}
	return of
}

func padded(run []*export.Usage, n int) []*export.Usage {
	return append(append(make([]*export.Usage, 0, n), run...), make([]*export.Usage, n-len(run))...)
}

// onOneSide separates the pairs from the processes that only one side has.
func onOneSide(before, after []*export.Usage) (pairedBefore, pairedAfter, onlyBefore, onlyAfter []*export.Usage) {
	for i := range before {
		switch {
		case after[i] == nil:
			onlyBefore = append(onlyBefore, before[i])
		case before[i] == nil:
			onlyAfter = append(onlyAfter, after[i])
		default:
			pairedBefore, pairedAfter = append(pairedBefore, before[i]), append(pairedAfter, after[i])
		}
	}
	return pairedBefore, pairedAfter, onlyBefore, onlyAfter
}

var errNoPair = errors.New("no process is on both sides, so there is nothing to compare: name two files, or take --missing-as-zero")

// missing prints the processes that only one side has.
func missing(a *cli.App, side string, processes []*export.Usage, o diffOptions) {
	if o.json {
		return
	}
	for _, p := range processMemories(processes, o.of) {
		fmt.Fprintf(a.Stdout, "  only %s: %s, %v: not counted, see --missing-as-zero\n", side, p.Name, p.Bytes)
	}
}

// pairNames names each pair by its later file.
func pairNames(old, now []*export.Usage) []string {
	later := slices.Clone(now)
	for i, u := range later {
		if u == nil {
			later[i] = old[i]
		}
	}
	return processNames(later)
}

// changed leaves out lines without a change.
func changed(lines []export.Line) []export.Line {
	return slices.DeleteFunc(lines, func(l export.Line) bool { return l.Change().IsZero() && spread(l) == 0 })
}

func diffJSON(a *cli.App, old, now *processSet, onlyBefore, onlyAfter []*export.Usage, lines []export.Line, sum export.Line, names []string, o diffOptions) error {
	out := diffOutput{
		Schema: diffSchema, By: o.by, Of: o.of, Host: o.host, Filter: o.filter.asked(), Before: old.json(), After: now.json(),
		OnlyBefore: processMemories(onlyBefore, o.of), OnlyAfter: processMemories(onlyAfter, o.of),
		Lines: []diffLine{}, Total: diffLineOf(sum, names),
	}
	shown, _ := firstLines(lines, o)
	for _, l := range shown {
		out.Lines = append(out.Lines, diffLineOf(l, names))
	}
	return cli.WriteJSON(a.Stdout, out)
}

func diffTable(a *cli.App, lines []export.Line, sum export.Line, names []string, o diffOptions) {
	if len(lines) == 0 {
		fmt.Fprintln(a.Stdout, "no change")
		return
	}
	t := linesTable(names, "Before", title(o.by), "Before", "After", "Change", "Count")
	color := cli.Colored(a.Stdout)
	shown, others := firstLines(lines, o)
	for _, l := range shown {
		t.AppendRow(diffRow(l, names, color))
	}
	if len(others) > 0 {
		t.AppendRow(diffRow(rest(others), names, color))
	}
	t.AppendFooter(diffRow(sum, names, color))
	fmt.Fprint(a.Stdout, t.Fitted(cli.WidthOf(a.Stdout)))
}

// firstLines returns the lines to print and the others. The line that shrank most is always printed, however
// small it is beside those that grew.
func firstLines(lines []export.Line, o diffOptions) (shown, others []export.Line) {
	n := o.shown(len(lines))
	shown, others = slices.Clone(lines[:n]), slices.Clone(lines[n:])
	if len(others) == 0 {
		return shown, nil
	}
	shrink := func(x, y export.Line) int { return cmp.Compare(x.Change().Bytes, y.Change().Bytes) }
	if most := slices.MinFunc(others, shrink); most.Change().Bytes < min(0, slices.MinFunc(shown, shrink).Change().Bytes) {
		shown = append(shown, most)
		others = slices.DeleteFunc(others, func(l export.Line) bool { return l.Key == most.Key })
	}
	return shown, others
}

func diffRow(l export.Line, names []string, color bool) table.Row {
	change := l.Change()
	row := table.Row{line.Line(l.Key), l.Before.Bytes, l.After.Bytes, paintedChange(change.Bytes, color), fmt.Sprintf("%+d", change.Count)}
	if len(names) > 1 {
		cells := spreadCells(l, names)
		if most, ok := cells[0].(alloc.Bytes); ok {
			cells[0] = paintedChange(most, color)
		}
		row = append(row, cells...)
	}
	return row
}

// painted is a cell with our own colors, which the table must not escape.
type painted string

// paintedChange prints a change, with a color for growth and one for shrinking if color is on.
func paintedChange(b alloc.Bytes, color bool) painted {
	switch text := cli.Signed(b); {
	case b > 0:
		return painted(cli.Paint(text, cli.Red, color))
	case b < 0:
		return painted(cli.Paint(text, cli.Green, color))
	default:
		return painted(text)
	}
}

// overLimit reports whether the memory of a process grew by more than the limit. The error names the process
// that grew most.
func overLimit(sum export.Line, names []string, limit alloc.Bytes) (bool, error) {
	rank, change := largestChange(sum)
	if rank < 0 || change.Bytes <= limit {
		return false, nil
	}
	where := ""
	if len(names) > 1 {
		where = " in " + names[rank]
	}
	return true, cli.Exit(cli.ExitUnfit, fmt.Errorf("memory grew by %v%s, more than the %v of --fail-over", change.Bytes, where, limit))
}

// diffOutput is what diff --json prints.
type diffOutput struct {
	Schema     string          `json:"schema"`
	By         string          `json:"by"`
	Of         string          `json:"of"`
	Host       bool            `json:"host,omitempty"`
	Filter     *filter         `json:"filter,omitempty"`
	Before     shownFiles      `json:"before"`
	After      shownFiles      `json:"after"`
	OnlyBefore []processMemory `json:"only_before"` // not counted
	OnlyAfter  []processMemory `json:"only_after"`
	Lines      []diffLine      `json:"lines"`
	Total      diffLine        `json:"total"`
}

type processMemory struct {
	Name  string      `json:"name"`
	Bytes alloc.Bytes `json:"bytes"`
}

type diffLine struct {
	Key         string      `json:"key"`
	Before      alloc.Bytes `json:"before_bytes"`
	After       alloc.Bytes `json:"after_bytes"`
	Change      alloc.Bytes `json:"change_bytes"`
	CountBefore int64       `json:"before_count"`
	CountAfter  int64       `json:"after_count"`
	Spread      *spreadJSON `json:"spread,omitempty"`
}

func diffLineOf(l export.Line, names []string) diffLine {
	return diffLine{
		Key: l.Key, Before: l.Before.Bytes, After: l.After.Bytes, Change: l.Change().Bytes,
		CountBefore: l.Before.Count, CountAfter: l.After.Count, Spread: spreadOf(l, names),
	}
}

func processMemories(processes []*export.Usage, of string) []processMemory {
	list := []processMemory{}
	for i, name := range processNames(processes) {
		_, sum := export.Compare(nil, processes[i:i+1], "kind", of)
		list = append(list, processMemory{name, sum.After.Bytes})
	}
	return list
}
