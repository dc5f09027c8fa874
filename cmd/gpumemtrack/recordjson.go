package main

import (
	"encoding/json"
	"io"
	"math"
	"time"

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

// finite is a number as JSON has it; nil is null.
func finite(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// writeJSON prints a value as one line.
func writeJSON(w io.Writer, v any) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	return out.Encode(v)
}
