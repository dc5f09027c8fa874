package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
)

// tableOptions say what a table of memory sums up.
type tableOptions struct {
	top    int
	by     string
	of     string
	host   bool        // the host's memory, not the device's
	memory alloc.Bytes // that a file may take; 0 is the usual
	json   bool
	all    bool // no --top was given, so JSON has every line
}

func (o *tableOptions) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&o.top, "top", 20, "print `N` lines, or all if 0; --json prints all unless --top is given")
	flags.StringVar(&o.by, "by", string(export.BySite), "sum up by `WHAT`: "+words(export.Bys()))
	flags.StringVar(&o.of, "of", string(export.OfLive), "`WHICH` memory: "+words(export.Ofs())+"; pprof profiles and PyTorch snapshots without events have no peak")
	flags.BoolVar(&o.host, "host", false, "pinned and mapped host memory, instead of device memory")
	flags.BoolVar(&o.json, "json", false, "print JSON")
	addMemoryFlag(cmd, &o.memory)
	complete(cmd, "by", list(export.Bys())...)
	complete(cmd, "of", list(export.Ofs())...)
}

func list[T ~string](words []T) []string {
	var all []string
	for _, w := range words {
		all = append(all, string(w))
	}
	return all
}

func words[T ~string](of []T) string { return strings.Join(list(of), ", ") }

func (o *tableOptions) check(cmd *cobra.Command) error {
	o.all = o.json && !cmd.Flags().Changed("top")
	switch {
	case !slices.Contains(export.Bys(), export.By(o.by)):
		return usageError("--by %q: want one of %s", o.by, words(export.Bys()))
	case !slices.Contains(export.Ofs(), export.Of(o.of)):
		return usageError("--of %q: want one of %s", o.of, words(export.Ofs()))
	case o.top < 0:
		return usageError("--top cannot be negative")
	}
	return nil
}

// shown returns how many of the lines to print.
func (o *tableOptions) shown(lines int) int {
	if o.top == 0 || o.all {
		return lines
	}
	return min(o.top, lines)
}
