package inspect

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

type replayOptions struct {
	memory    alloc.Bytes
	allocator string
	conf      string
	smallest  bool
	device    int
	json      bool
}

// Replay is gpumemtrack replay.
func Replay(a *cli.App) *cobra.Command {
	var o replayOptions
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Replay a recorded run on another device: would it have fitted?",
		Long: `Run the history of a dump, or of a memory snapshot of PyTorch, through an
allocator again: does it fit into --memory, and if not, where does it run out?
FILE may be the URL of a live page, http://localhost:6061/debug/gpumem/, or -
for standard input.

Without --allocator and --conf the allocator is the recorded one. --memory is
what the program can use, without the CUDA context and other processes. The exit
code is 3 if the history does not fit. --smallest finds the least memory that
each allocator needs.

docs/replay.md describes what a replay models and what it does not, and what
--json prints.`,
		Example: `  gpumemtrack replay yesterday.dump.json --memory 24GiB    # for CI
  gpumemtrack replay snapshot.pickle --smallest
  gpumemtrack replay snapshot.pickle --memory 24GiB --conf max_split_size_mb:128`,
		Args: cli.Exactly(1, "the file of a dump or a memory snapshot of PyTorch"),
		RunE: func(_ *cobra.Command, args []string) error { return runReplay(a, args[0], o) },
	}
	flags := cmd.Flags()
	flags.Var(cli.SizeFlag(&o.memory), "memory", "the `SIZE` of the memory, such as 24GiB (default: no limit)")
	flags.StringVar(&o.allocator, "allocator", "", "`WHICH` allocator: cache, expandable or driver")
	flags.StringVar(&o.conf, "conf", "", "`SETTINGS` of the cache, as in PYTORCH_CUDA_ALLOC_CONF")
	flags.BoolVar(&o.smallest, "smallest", false, "find the least memory on which it fits")
	addDeviceFlag(cmd, &o.device)
	flags.BoolVar(&o.json, "json", false, "print JSON")
	cli.Complete(cmd, "allocator", "cache", "expandable", "driver")
	cli.AddInputFlags(a, cmd)
	return cmd
}

func runReplay(a *cli.App, path string, o replayOptions) error {
	if o.smallest && o.memory != 0 {
		return cli.UsageError("replay: --smallest finds the memory: leave out --memory")
	}
	r, err := cli.OpenDump(a, path, o.device)
	if err != nil {
		return err
	}
	configs, err := o.configs(r)
	if err != nil {
		return err
	}
	if o.smallest {
		return replaySmallest(a, path, r, configs, o)
	}
	result, err := replay.Run(r, configs[0])
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if o.json {
		err = cli.WriteObject(a.Stdout, "gpumemtrack.replay/2", result)
	} else {
		fmt.Fprint(a.Stdout, result)
	}
	if err == nil && !result.Fits {
		err = cli.Exit(cli.ExitUnfit, nil)
	}
	return err
}

// configs returns the configurations to replay with: one, or one for each allocator in a search
// without --allocator.
func (o replayOptions) configs(r *snapshot.Dump) ([]replay.Config, error) {
	conf, err := cache.ParseConfig(o.conf)
	if err != nil {
		return nil, cli.UsageError("replay: --conf: %w", err)
	}
	kind := o.allocator
	switch {
	case o.allocator != "" && !slices.Contains(replay.Allocators(), kind):
		return nil, cli.UsageError("replay: --allocator %q: want cache, expandable or driver", o.allocator)
	case kind == "driver" && o.conf != "":
		return nil, cli.UsageError("replay: --conf is for a cache: the driver has no settings")
	case kind == "cache" && conf.ExpandableSegments:
		return nil, cli.UsageError("replay: --allocator cache and expandable_segments contradict each other: give one of them")
	case o.smallest && o.allocator == "" && !conf.ExpandableSegments:
		if o.conf == "" {
			conf = replay.Recorded(r).Conf
			conf.ExpandableSegments = false
		}
		configs := []replay.Config{{Allocator: "cache", Conf: conf}, {Allocator: "expandable", Conf: conf}}
		return append(configs, replay.Config{Allocator: "driver"}), nil
	case o.allocator == "" && o.conf == "":
		cfg := replay.Recorded(r)
		cfg.Memory = o.memory
		return []replay.Config{cfg}, nil
	}
	return []replay.Config{{Memory: o.memory, Allocator: kind, Conf: conf}}, nil
}

// replaySmallest searches the smallest device for each allocator, and prints one table.
func replaySmallest(a *cli.App, path string, r *snapshot.Dump, configs []replay.Config, o replayOptions) error {
	var results []replay.Result
	for _, cfg := range configs {
		result, err := replay.Smallest(r, cfg)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		results = append(results, result)
	}
	if o.json {
		return json.NewEncoder(a.Stdout).Encode(struct {
			Schema  string          `json:"schema"`
			Results []replay.Result `json:"results"`
		}{"gpumemtrack.replay.smallest/1", results})
	}
	first := results[0]
	fmt.Fprintf(a.Stdout, "%d events; recorded: peak %v requested, %v in blocks, %v reserved\n",
		first.Events, first.Recorded.PeakRequested, first.Recorded.PeakAllocated, first.Recorded.PeakReserved)
	t := cli.NewTable(a.Stdout, 1, "Allocator", "Smallest memory", "Driver calls", "Retries")
	for _, x := range results {
		smallest := "unknown"
		if x.Memory > 0 {
			smallest = x.Memory.String()
		}
		t.AppendRow([]any{x.Allocator, smallest, x.DriverAllocs + x.DriverFrees, x.Retries})
	}
	t.Render()
	printNotes(a, results)
	return nil
}

// printNotes prints each note once. A note that is not about all allocators names its allocator.
func printNotes(a *cli.App, results []replay.Result) {
	times := make(map[string]int)
	for _, x := range results {
		for _, note := range x.Notes() {
			times[note]++
		}
	}
	for _, x := range results {
		for _, note := range x.Notes() {
			switch {
			case times[note] == len(results):
				fmt.Fprintf(a.Stdout, "note: %s\n", note)
			case times[note] > 0:
				fmt.Fprintf(a.Stdout, "%s: %s\n", x.Allocator, note)
			}
			delete(times, note)
		}
	}
}
