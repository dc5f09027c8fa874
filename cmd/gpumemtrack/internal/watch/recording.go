package watch

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

const recordSchema = "gpumemtrack.record/1"

// recordOutput is what record --json prints.
type recordOutput struct {
	Schema   string         `json:"schema"`
	Source   string         `json:"source"`
	Start    time.Time      `json:"start"`
	Interval float64        `json:"interval_seconds"`
	Duration float64        `json:"duration_seconds"`
	Failures int            `json:"failures"`
	Samples  []string       `json:"samples"`
	Charts   []string       `json:"charts"`
	Series   []recordSeries `json:"series"`
}

type recordSeries struct {
	Device   nvml.Device   `json:"device"`
	Quantity nvml.Quantity `json:"quantity"`
	PID      int           `json:"pid,omitempty"`
	Scope    nvml.Scope    `json:"scope"`
	Minimum  *float64      `json:"minimum"`
	Maximum  *float64      `json:"maximum"`
	Mean     *float64      `json:"mean"`
	Duration float64       `json:"duration_seconds"`
	Samples  int           `json:"samples"`
	Gaps     int           `json:"gaps"`
	Note     string        `json:"note,omitempty"`
	Ended    bool          `json:"ended,omitempty"`
}

func recordedJSON(rec nvml.Recording, samples, charts []string) recordOutput {
	out := recordOutput{
		Schema: recordSchema, Source: rec.Source, Start: rec.Start,
		Interval: rec.Interval.Seconds(), Duration: rec.Duration().Seconds(), Failures: rec.Failures,
		Samples: append([]string{}, samples...), Charts: append([]string{}, charts...), Series: []recordSeries{},
	}
	for _, s := range rec.Series {
		one := recordSeries{
			Device: s.Device, Quantity: s.Quantity, PID: s.Target.PID, Scope: s.Scope,
			Duration: s.Duration().Seconds(), Samples: s.Len(), Gaps: s.Gaps(), Note: s.Note, Ended: s.Ended,
		}
		if s.Known() {
			one.Minimum, one.Maximum, one.Mean = finite(s.Min()), finite(s.Max()), finite(s.Mean())
		}
		out.Series = append(out.Series, one)
	}
	return out
}

// finite returns a number, or nil, which JSON prints as null, if JSON has no such number.
func finite(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// WriteRecording prints the table of a recording, and below it the notes on its gaps.
func WriteRecording(w io.Writer, rec nvml.Recording) {
	t := cli.NewGrid(2, []string{"Name", "Gaps", "Rate", "Duration", "Mean", "Minimum"},
		"Series", "Name", "Minimum", "Maximum", "Mean", "Duration", "Rate", "Gaps")
	var notes cli.Remarks
	for _, s := range rec.Series {
		if s.Note != "" {
			notes.Add(s.Device, noteOf(s))
		}
		if !s.Known() {
			if s.Note != "" {
				t.AppendRow(table.Row{s.Label(), s.Device.Name, "unknown", "unknown", "unknown", "-", "-", s.Gaps()})
			}
			continue // a sensor that the device does not have
		}
		t.AppendRow(table.Row{
			s.Label(), s.Device.Name, s.Quantity.Format(s.Min()), s.Quantity.Format(s.Max()), s.Quantity.Format(s.Mean()),
			fmt.Sprintf("%.1f s", s.Duration().Seconds()), rateCell(s), s.Gaps(),
		})
	}
	io.WriteString(w, t.Fitted(cli.WidthOf(w)))
	for _, note := range notes.Lines() {
		fmt.Fprintln(w, note)
	}
	if rec.Failures > 0 {
		fmt.Fprintf(w, "Queries without an answer, each a gap: %d\n", rec.Failures)
	}
}

// noteOf is a note as it follows the name of the device: with the name of its series, unless it names the process itself.
func noteOf(s nvml.Series) string {
	if s.Quantity == nvml.ProcessMemory && strings.HasPrefix(s.Note, s.Target.String()) {
		return " " + s.Note
	}
	return strings.TrimPrefix(s.Label(), s.Device.Label()) + ": " + s.Note
}

func rateCell(s nvml.Series) string {
	if s.Len() < 3 || s.Duration() < 100*time.Millisecond { // too short for a rate
		return "-"
	}
	return fmt.Sprintf("%.1f Hz", float64(s.Len()-1)/s.Duration().Seconds())
}
