package main

import (
	"fmt"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
)

type diffOptions struct {
	tableOptions
	failOver alloc.Bytes
}

func diffCommand(a *app) *cobra.Command {
	var o diffOptions
	cmd := &cobra.Command{
		Use:   "diff BEFORE AFTER",
		Short: "Show what grew and shrank between two runs, by line of code",
		Long: `Show what grew and shrank between two runs, by line of code. BEFORE and AFTER are
snapshots and dumps of a tracker, pprof profiles, or memory snapshots of PyTorch.

Each may be many files, such as those of the ranks of a run: a directory, or a
pattern in quotes. Files of the same rank pair; where a file does not tell its rank, or
two tell the same, files pair in the order of their names. The table shows the sum, the
pair that grew most, and the spread between most and least.

With --fail-over the exit code is 3 if memory grew by more than that, in any one pair.`,
		Example: `  gpumemtrack diff yesterday.json today.json
  gpumemtrack diff yesterday.json today.json --of peak --fail-over 64MiB    # for CI
  gpumemtrack diff 'old/rank*.pb.gz' 'new/rank*.pb.gz' --by function`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageError("diff: name what to compare, before and after: see %s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.diff(args[0], args[1], o, cmd.Flags().Changed("fail-over"))
		},
	}
	o.flags(cmd)
	cmd.Flags().Var(sizeFlag{&o.failOver}, "fail-over", "exit with 3 if memory grew by more than this: 64MiB")
	return cmd
}

func (a *app) diff(before, after string, o diffOptions, gate bool) error {
	if err := o.check(); err != nil {
		return err
	}
	old, err := readUsages([]string{before})
	if err != nil {
		return err
	}
	now, err := readUsages([]string{after})
	if err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "%s memory\n  before: %s\n  after:  %s\n", o.of, describeFiles(old), describeFiles(now))
	old, now = export.Pair(old, now)
	names := pairNames(old, now)
	lines, sum := export.Compare(old, now, export.By(o.by), export.Of(o.of))
	a.diffTable(changed(lines), sum, names, o)
	if grown, err := overLimit(sum, names, o.failOver); gate && grown {
		return err
	}
	return nil
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

func (a *app) diffTable(lines []export.Line, sum export.Line, names []string, o diffOptions) {
	if len(lines) == 0 {
		fmt.Fprintln(a.stdout, "no change")
		return
	}
	heading := []any{title(o.by), "Before", "After", "Change", "Count"}
	if len(names) > 1 {
		heading = append(heading, "Most", "In", "Spread")
	}
	t := memoryTable(a.stdout, heading...)
	shown := o.shown(len(lines))
	for _, l := range lines[:shown] {
		t.AppendRow(diffRow(l, names))
	}
	if shown < len(lines) {
		t.AppendRow(diffRow(rest(lines[shown:]), names))
	}
	t.AppendFooter(diffRow(sum, names))
	t.Render()
}

func diffRow(l export.Line, names []string) table.Row {
	change := l.Change()
	row := table.Row{l.Key, l.Before.Bytes, l.After.Bytes, signed(change.Bytes), fmt.Sprintf("%+d", change.Count)}
	if len(names) > 1 {
		cells := ofRanks(l, names)
		if most, ok := cells[0].(alloc.Bytes); ok {
			cells[0] = signed(most)
		}
		row = append(row, cells...)
	}
	return row
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
