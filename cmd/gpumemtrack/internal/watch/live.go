package watch

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// sparkPoints is the number of latest points that the live line draws.
const sparkPoints = 24

// showLive keeps a line about the recording on the terminal until ctx is done. If a command runs,
// which writes to the terminal too, the line is in the last row. In a pipe it shows nothing.
func showLive(ctx context.Context, a *cli.App, rec *nvml.Recorder, beside bool, o recordOptions) {
	tty, ok := cli.Terminal(a.Stderr)
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
			line := cli.Fit(liveLine(rec.Recording()), cli.WidthOf(tty))
			status.show(cli.Paint(line, cli.Cyan, cli.Colored(tty)))
		}
	}
}

// liveLine returns for each device the current value, the peak and the latest values: of the
// watched process if known, otherwise of the device.
func liveLine(rec nvml.Recording) string {
	var parts []string
	for _, d := range rec.Devices {
		s, ok := seriesToShow(rec, d)
		if !ok {
			continue
		}
		values, now := latest(s, sparkPoints)
		state := s.Quantity.Format(now) + " now"
		if s.Ended {
			state = "lost"
		}
		parts = append(parts, fmt.Sprintf("%s: %s, %s peak %s", s.Label(), state, s.Quantity.Format(s.Max()), sparkline(values)))
	}
	return fmt.Sprintf("%s  %s", rec.Duration().Round(time.Second), strings.Join(parts, "  "))
}

func seriesToShow(rec nvml.Recording, d nvml.Device) (nvml.Series, bool) {
	for _, q := range []nvml.Quantity{nvml.ProcessMemory, nvml.MemoryUsed} {
		for _, s := range rec.Series {
			if s.Quantity == q && s.Device == d && s.Known() {
				return s, true
			}
		}
	}
	return nvml.Series{}, false
}

// latest returns the last n values, without gaps, and the last of all. Of merged samples it is the largest.
func latest(s nvml.Series, n int) (values []float64, now float64) {
	before := time.Duration(-1)
	for t, v := range s.Points() {
		switch {
		case math.IsNaN(v):
		case t == before:
			values[len(values)-1] = v
		default:
			values, before = append(values, v), t
		}
	}
	values = values[max(0, len(values)-n):]
	return values, values[len(values)-1]
}

// statusLine is a line that stays on a terminal. Normally it is where the cursor is. If a program
// writes to the same terminal, the line is in the last row, which is excluded from scrolling
// (DECSTBM), as apt does with its progress bar; otherwise the program's next line would begin at
// the end of this one.
type statusLine struct {
	tty    *os.File
	beside bool
	rows   int  // height of the terminal when the last row was reserved
	taken  bool // the last row has been reserved
}

const (
	saveCursor, restoreCursor = "\x1b7", "\x1b8"

	// lineDown and lineUp move the cursor and keep its column. In the last row lineDown scrolls.
	lineDown, lineUp = "\x1bD", "\x1b[A"
)

// show draws the line, unless a program beside it uses the whole screen. Such a program resets the
// scrolling region, so it is set again afterwards.
func (s *statusLine) show(line string) {
	if s.beside && isRaw(s.tty) {
		s.rows = 0
		return
	}
	rows := cli.ScreenOf(s.tty).Height
	if !s.beside || rows < 3 {
		fmt.Fprint(s.tty, cli.ClearLine, line)
		return
	}
	take := ""
	if rows != s.rows {
		take = fmt.Sprintf(lineDown+saveCursor+"\x1b[1;%dr"+restoreCursor+lineUp, rows-1)
		s.rows, s.taken = rows, true
	}
	fmt.Fprint(s.tty, take+s.inLastRow(line))
}

// remove deletes the line and leaves the cursor at the beginning of a line: the next one, if the
// program, or the terminal with its ^C, has written in this one.
func (s *statusLine) remove() {
	end := cli.ClearLine
	if s.beside { // these blanks wrap to the next line from any column but the first
		end = strings.Repeat(" ", cli.ScreenOf(s.tty).Width) + cli.ClearLine
	}
	if s.taken {
		s.rows = cli.ScreenOf(s.tty).Height
		end = saveCursor + "\x1b[r" + restoreCursor + s.inLastRow("") + end
	}
	fmt.Fprint(s.tty, end)
}

func (s *statusLine) inLastRow(line string) string {
	return fmt.Sprintf(saveCursor+"\x1b[%d;1H\x1b[2K%s"+restoreCursor, s.rows, line)
}

// sparkline draws values as blocks of eight heights, from zero to the largest.
func sparkline(values []float64) string {
	blocks := []rune("▁▂▃▄▅▆▇█")
	top := 0.0
	for _, v := range values {
		top = max(top, v)
	}
	var b strings.Builder
	for _, v := range values {
		level := 0
		if top > 0 {
			level = int(v / top * float64(len(blocks)-1))
		}
		b.WriteRune(blocks[level])
	}
	return b.String()
}
