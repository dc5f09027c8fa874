package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// WriteRecording prints the table of a recording, and below it the notes on its gaps.
func WriteRecording(w io.Writer, rec nvml.Recording) {
	t := NewGrid(2, []string{"Name", "Gaps", "Rate", "Duration", "Mean", "Minimum"},
		"Series", "Name", "Minimum", "Maximum", "Mean", "Duration", "Rate", "Gaps")
	var notes Warnings
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
			durationCell(s, rec.Numbered), rateCell(s, rec.Numbered), s.Gaps(),
		})
	}
	io.WriteString(w, t.Fitted(WidthOf(w)))
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

func durationCell(s nvml.Series, numbered bool) string {
	if numbered {
		return "-"
	}
	return fmt.Sprintf("%.1f s", s.Duration().Seconds())
}

func rateCell(s nvml.Series, numbered bool) string {
	if numbered || s.Len() < 3 || s.Duration() < 100*time.Millisecond { // too short for a rate
		return "-"
	}
	return fmt.Sprintf("%.1f Hz", float64(s.Len()-1)/s.Duration().Seconds())
}
