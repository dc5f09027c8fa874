package main

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	line "github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
)

type diffOptions struct {
	tableOptions
	failOver      alloc.Bytes
	missingAsZero bool
}

func diffCommand(a *app) *cobra.Command {
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
are skipped. The output says what was left out. The table shows the sum of the
pairs, the pair that grew most, and the spread between the largest and the
smallest change.

A process that only one side has is listed and not counted; with
--missing-as-zero it is compared with zero.

With --fail-over the exit code is 3 if memory grew by more than that in any
pair.

--json prints one object: "schema", "by", "of", "before" and "after" with their
"files", "only_before" and "only_after" with processes that do not count,
"lines", each with its "key", "before_bytes", "after_bytes", "change_bytes",
"before_count", "after_count" and, of several pairs, "spread", and "total", the
sum of all lines.`,
		Example: `  gpumemtrack diff yesterday.json today.json
  gpumemtrack diff yesterday.json today.json --fail-over 64MiB    # for CI
  gpumemtrack diff 'old/rank*.pb.gz' 'new/rank*.pb.gz' --by function`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageError("diff: name what to compare, before and after: see %s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return a.diff(args[0], args[1], o, cmd.Flags().Changed("fail-over"))
		},
	}
	o.flags(cmd)
	cmd.Flags().Var(sizeFlag{&o.failOver}, "fail-over", "exit with 3 if memory grew by more than `SIZE`, such as 64MiB")
	cmd.Flags().BoolVar(&o.missingAsZero, "missing-as-zero", false, "compare a process that only one side has with zero")
	return cmd
}

func (a *app) diff(before, after string, o diffOptions, gate bool) error {
	old, err := a.readRanks(o.memory, before)
	if err != nil {
		return err
	}
	now, err := a.readRanks(o.memory, after)
	if err != nil {
		return err
	}
	if !o.json {
		fmt.Fprintf(a.stdout, "%s memory\n  before: %v\n  after:  %v\n", o.of, old, now)
	}
	from, to := old.processes, now.processes
	if !old.file || !now.file {
		from, to = export.Pair(from, to)
	}
	var gone, came []*export.Usage
	if !o.missingAsZero {
		from, to, gone, came = onOneSide(from, to)
		a.missing("before", gone, o)
		a.missing("after", came, o)
		if len(from) == 0 {
			return errNoPair
		}
	}
	if o.host {
		from, to = onHost(from), onHost(to)
	}
	names := pairNames(from, to)
	lines, sum := export.Compare(from, to, export.By(o.by), export.Of(o.of))
	if o.json {
		err = a.diffJSON(old, now, gone, came, changed(lines), sum, names, o)
	} else {
		a.diffTable(changed(lines), sum, names, o)
	}
	if err != nil {
		return err
	}
	if grown, err := overLimit(sum, names, o.failOver); gate && grown {
		return err
	}
	return nil
}

// missing names the processes that only one side has.
func (a *app) missing(side string, processes []*export.Usage, o diffOptions) {
	if o.json {
		return
	}
	for _, p := range processMemories(processes, o.of) {
		fmt.Fprintf(a.stdout, "  only %s: %s, %v: not counted, see --missing-as-zero\n", side, p.Name, p.Bytes)
	}
}

// pairNames names pairs by the later file.
func pairNames(old, now []*export.Usage) []string {
	later := slices.Clone(now)
	for i, u := range later {
		if u == nil {
			later[i] = old[i]
		}
	}
	return processNames(later)
}

// changed leaves out the lines that are as before.
func changed(lines []export.Line) []export.Line {
	return slices.DeleteFunc(lines, func(l export.Line) bool { return l.Change().IsZero() && l.Spread() == 0 })
}

func (a *app) diffJSON(old, now *ranks, gone, came []*export.Usage, lines []export.Line, sum export.Line, names []string, o diffOptions) error {
	out := diffOutput{
		Schema: diffSchema, By: o.by, Of: o.of, Before: old.json(), After: now.json(),
		OnlyBefore: processMemories(gone, o.of), OnlyAfter: processMemories(came, o.of),
		Lines: []diffLine{}, Total: diffLineOf(sum, names),
	}
	shown, _ := firstLines(lines, o)
	for _, l := range shown {
		out.Lines = append(out.Lines, diffLineOf(l, names))
	}
	return writeJSON(a.stdout, out)
}

func (a *app) diffTable(lines []export.Line, sum export.Line, names []string, o diffOptions) {
	if len(lines) == 0 {
		fmt.Fprintln(a.stdout, "no change")
		return
	}
	heading := []any{title(o.by), "Before", "After", "Change", "Count"}
	if len(names) > 1 {
		heading = append(heading, "Most", "In", "Spread")
	}
	t := memoryTable("Before", heading...)
	color := colored(a.stdout)
	shown, others := firstLines(lines, o)
	for _, l := range shown {
		t.AppendRow(diffRow(l, names, color))
	}
	if len(others) > 0 {
		t.AppendRow(diffRow(rest(others), names, color))
	}
	t.AppendFooter(diffRow(sum, names, color))
	fmt.Fprint(a.stdout, t.fitted(widthOf(a.stdout)))
}

// firstLines returns the lines to print and the others. The line that shrank most is always
// printed.
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
		cells := ofRanks(l, names)
		if most, ok := cells[0].(alloc.Bytes); ok {
			cells[0] = paintedChange(most, color)
		}
		row = append(row, cells...)
	}
	return row
}

// painted is a table's cell that may have colors, which are ours.
type painted string

// paintedChange colors what grew and what shrank, where colors can be seen.
func paintedChange(b alloc.Bytes, color bool) painted {
	switch text := signed(b); {
	case b > 0:
		return painted(paint(text, red, color))
	case b < 0:
		return painted(paint(text, green, color))
	default:
		return painted(text)
	}
}

func signed(b alloc.Bytes) string {
	if b > 0 {
		return "+" + b.String()
	}
	return b.String()
}

// overLimit tells whether any process grew by more than the limit, and of it.
func overLimit(sum export.Line, names []string, limit alloc.Bytes) (bool, error) {
	rank, change := sum.Worst()
	if rank < 0 || change.Bytes <= limit {
		return false, nil
	}
	where := ""
	if len(names) > 1 {
		where = " in " + names[rank]
	}
	return true, &codedError{exitUnfit, fmt.Errorf("memory grew by %v%s, more than the %v of --fail-over", change.Bytes, where, limit)}
}
