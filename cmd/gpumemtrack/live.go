package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// sparkPoints is how many of the latest points the live line draws.
const sparkPoints = 24

// showLive keeps a line with the recording's state on the terminal until ctx is
// done: where the cursor is, or beside a command, which writes to the terminal
// too, in the last row. In a pipe it shows nothing.
func (a *app) showLive(ctx context.Context, rec *nvml.Recorder, beside bool, o recordOptions) {
	tty, ok := terminal(a.stderr)
	if !ok || o.noLive {
		<-ctx.Done()
		return
	}
	status := statusLine{tty: tty, beside: beside}
	defer status.remove()
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			line := fit(liveLine(rec.Recording()), widthOf(tty))
			status.show(paint(line, cyan, colored(tty)))
		}
	}
}

// liveLine says of each device what is used now, the peak, and the way there;
// of the process where there is one that is known.
func liveLine(rec nvml.Recording) string {
	var parts []string
	for _, d := range rec.Devices {
		s, ok := seriesToShow(rec, d)
		if !ok {
			continue
		}
		values, now := latest(s, sparkPoints)
		state := s.Format(now) + " now"
		if s.Ended {
			state = "lost"
		}
		parts = append(parts, fmt.Sprintf("%s: %s, %s peak %s", s.Label(), state, s.Format(s.Max()), sparkline(values)))
	}
	return fmt.Sprintf("%s  %s", rec.Duration().Round(time.Second), strings.Join(parts, "  "))
}

func seriesToShow(rec nvml.Recording, d nvml.Device) (nvml.Series, bool) {
	for _, q := range []nvml.Quantity{nvml.ProcessMemory, nvml.MemoryUsed} {
		for _, s := range rec.Of(q) {
			if s.Device == d && s.Known() {
				return s, true
			}
		}
	}
	return nvml.Series{}, false
}

// latest returns the maxima of the last n points that are no gaps.
func latest(s nvml.Series, n int) (values []float64, now float64) {
	for p := range s.Points() {
		if !p.IsGap() {
			values = append(values, p.Max)
		}
	}
	values = values[max(0, len(values)-n):]
	return values, values[len(values)-1]
}
