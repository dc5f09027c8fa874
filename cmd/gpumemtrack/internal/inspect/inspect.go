// Package inspect has the commands that read a file or a live page and print what is in it: show, diff,
// leaks, layers, convert, explain and replay, and chart for recordings. They change nothing that they read. Each
// command has a file of its name; processes.go reads the files of several processes for show, diff and explain,
// filter.go selects memory, and moment.go goes back in a file's history.
package inspect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// tableOptions say what a table of memory sums up, and how.
type tableOptions struct {
	top    int
	by     string
	of     string
	host   bool // count the host's memory, not the device's
	json   bool
	at     string // the moment of live memory; "" means the error, or else the end
	all    bool   // no --top was given, so JSON has every line
	filter filter
}

// tallies are those that export.Compare counts.
var tallies = []string{"live", "peak", "total"}

func (o *tableOptions) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&o.top, "top", 20, "print `N` lines, or all if 0; --json prints all unless --top is given")
	flags.StringVar(&o.by, "by", "line", "sum up by `WHAT`: "+joined(export.Bys()))
	flags.StringVar(&o.of, "of", "live", "`WHICH` memory: "+joined(tallies)+"; pprof profiles and PyTorch snapshots without events have no peak")
	flags.BoolVar(&o.host, "host", false, "pinned and mapped host memory, instead of device memory")
	flags.BoolVar(&o.json, "json", false, "print JSON")
	addMomentFlag(cmd, &o.at)
	o.filter.flags(cmd)
	cli.Complete(cmd, "by", list(export.Bys())...)
	cli.Complete(cmd, "of", list(tallies)...)
}

func list[T ~string](words []T) []string {
	var all []string
	for _, w := range words {
		all = append(all, string(w))
	}
	return all
}

func joined[T ~string](of []T) string { return strings.Join(list(of), ", ") }

func (o *tableOptions) check(cmd *cobra.Command) error {
	o.all = o.json && !cmd.Flags().Changed("top")
	switch {
	case !slices.Contains(export.Bys(), o.by):
		return cli.UsageError("--by %q: want one of %s", o.by, joined(export.Bys()))
	case !slices.Contains(tallies, o.of):
		return cli.UsageError("--of %q: want one of %s", o.of, joined(tallies))
	case o.at != "" && o.of != "live":
		return cli.UsageError("--at %s: --of %s is not memory at a moment", o.at, o.of)
	case o.top < 0:
		return cli.UsageError("--top cannot be negative")
	case len(o.filter.Groups) > 0 && cmd.Flags().Changed("by"):
		return cli.UsageError("--group sums up by its names: leave --by away")
	case o.of != "live" && o.filter.Older > 0:
		return cli.UsageError("--older: only live buffers have an age, and --of %s is not live: --at peak shows those of the peak", o.of)
	case o.of != "live" && o.by == "label":
		return cli.UsageError("--by label: only live buffers have one, and --of %s is not live: --at peak shows those of the peak", o.of)
	}
	if len(o.filter.Groups) > 0 {
		o.by = byGroup
	}
	return o.filter.check()
}

// what says which memory a table shows: "live" or "live host".
func (o *tableOptions) what() string {
	if o.host {
		return o.of + " host"
	}
	return o.of
}

// byGroup is the --by of a table with --group: the filter gives group names as labels.
const byGroup = "group"

func (o *tableOptions) sumBy() string {
	if o.by == byGroup {
		return "label"
	}
	return o.by
}

// shown returns the number of lines to print.
func (o *tableOptions) shown(lines int) int {
	if o.top == 0 || o.all {
		return lines
	}
	return min(o.top, lines)
}

// linesTable returns a table with a row for each line, which also compares the processes if there are several.
func linesTable(names []string, dropped string, heading ...any) *cli.Grid {
	if len(names) > 1 {
		heading = append(heading, "Most", "In", "Spread")
	}
	return cli.MemoryTable(dropped, heading...)
}

// rest returns one line that sums up the lines that are not printed.
func rest(lines []export.Line) export.Line {
	sum := export.Line{Key: fmt.Sprintf("%d more: see --top", len(lines))}
	for _, l := range lines {
		sum.Before = sum.Before.Add(l.Before)
		sum.After = sum.After.Add(l.After)
	}
	return sum
}

// spreadCells returns the cells that compare the ranks. They are empty in a line that sums up other
// lines.
func spreadCells(l export.Line, names []string) []any {
	rank, most := largestChange(l)
	if rank < 0 {
		return []any{"", "", ""}
	}
	return []any{most.Bytes, names[rank], spread(l)}
}

// largestChange returns the process that grew most and by how much; -1 if there is none.
func largestChange(l export.Line) (rank int, change mem.Tally) {
	rank = -1
	for i, t := range l.Ranks {
		if rank < 0 || t.Bytes > change.Bytes {
			rank, change = i, t
		}
	}
	return rank, change
}

// spread returns by how much the process that grew most grew more than the one that grew least.
func spread(l export.Line) alloc.Bytes {
	if len(l.Ranks) == 0 {
		return 0
	}
	least, most := l.Ranks[0].Bytes, l.Ranks[0].Bytes
	for _, t := range l.Ranks[1:] {
		least, most = min(least, t.Bytes), max(most, t.Bytes)
	}
	return most - least
}

// spreadJSON compares processes: which has most, or grew most.
type spreadJSON struct {
	Most   alloc.Bytes `json:"most_bytes"`
	In     string      `json:"most_in"`
	Spread alloc.Bytes `json:"bytes"`
}

func spreadOf(l export.Line, names []string) *spreadJSON {
	rank, most := largestChange(l)
	if len(names) < 2 || rank < 0 {
		return nil
	}
	return &spreadJSON{Most: most.Bytes, In: names[rank], Spread: spread(l)}
}

// processNames names each process by its rank, or by its file if it has no rank or shares it with another.
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
func rankName(o snapshot.Origin) string {
	if o.Rank == nil {
		return ""
	}
	return snapshot.Origin{Rank: o.Rank, Host: o.Host}.String()
}

// title returns a word as the heading of a column.
func title(word string) string { return strings.ToUpper(word[:1]) + word[1:] }

const (
	showSchema = "gpumemtrack.show/1"
	diffSchema = "gpumemtrack.diff/1"
)

// openDevices reads the dumps of all devices in a file.
func openDevices(a *cli.App, word string) (*files.File, []*snapshot.Dump, error) {
	f, err := cli.Open(a, word)
	if err != nil {
		return nil, nil, err
	}
	dumps, err := cli.DevicesOf(f, word)
	return f, dumps, err
}

// writeDevices prints what was found on each device as JSON.
func writeDevices[T any](a *cli.App, schema string, found []T) error {
	return cli.WriteJSON(a.Stdout, struct {
		Schema  string `json:"schema"`
		Devices []T    `json:"devices"`
	}{schema, found})
}

func addDeviceFlag(cmd *cobra.Command, device *int) {
	cmd.Flags().IntVar(device, "device", -1, "in a file of several devices, the `NUMBER` of one (default: the device with the most memory)")
	cmd.Flags().Lookup("device").DefValue = "0" // help prints no default
}
