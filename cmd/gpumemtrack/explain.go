package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
)

func explainCommand(a *app) *cobra.Command {
	var atPeak, asJSON bool
	var device int
	cmd := &cobra.Command{
		Use:   "explain FILE",
		Short: "Explain why reserved memory is stuck, and what would have helped",
		Long: `Explain, for a dump or a memory snapshot of PyTorch, where reserved memory goes,
to the byte: what rounding costs, what the cache would give back, and what is
stuck between buffers, with the lines of code that keep it. Replays of the
history show what other settings, or another order, would have saved: see
gpumemtrack replay. FILE may be the URL of a live page, or - for standard input.

For a directory, or a pattern in quotes, such as the dumps of the ranks of a
run, it prints a table of all processes, most stuck memory first, and then
explains the first of them. If there are several dumps of one process, the
latest counts.`,
		Example: `  gpumemtrack explain crash.dump.json
  gpumemtrack explain snapshot.pickle --peak
  gpumemtrack explain ranks/`,
		Args: exactly(1, "the file of a dump or a memory snapshot of PyTorch"),
		RunE: func(_ *cobra.Command, args []string) error {
			if paths, err := expand(args[0]); err == nil && (len(paths) > 1 || paths[0] != args[0]) {
				return a.explainRanks(args[0], paths, device, atPeak, asJSON)
			}
			r, err := a.openRecord(args[0], device)
			if err != nil {
				return err
			}
			x, err := replay.Explain(r, atPeak)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if asJSON {
				return json.NewEncoder(a.stdout).Encode(struct {
					Schema string `json:"schema"`
					*replay.Explanation
				}{"gpumemtrack.explain/1", x})
			}
			_, err = fmt.Fprint(a.stdout, x)
			return err
		},
	}
	cmd.Flags().BoolVar(&atPeak, "peak", false, "explain the peak of the history instead of its end")
	addDeviceFlag(cmd, &device)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
