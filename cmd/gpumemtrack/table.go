package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	line "github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// newTable returns a table with its heading, whose columns after the first
// left ones stand to the right. Render prints it.
func newTable(w io.Writer, left int, heading ...any) table.Writer {
	g := newGrid(left, nil, heading...)
	g.SetOutputMirror(w)
	return g
}

// grid is a table that fits the terminal.
type grid struct {
	table.Writer
	columns []table.ColumnConfig
	dropped []string // the columns that a narrow terminal goes without, the first to go first
	longest int      // of the first column's cells
}

func newGrid(left int, dropped []string, heading ...any) *grid {
	g := &grid{Writer: table.NewWriter(), dropped: dropped}
	g.SetStyle(table.StyleLight)
	g.Style().Format.Header = text.FormatDefault
	g.AppendHeader(heading)
	for i, name := range heading {
		g.columns = append(g.columns, table.ColumnConfig{Name: fmt.Sprint(name), Number: i + 1})
		if i >= left {
			g.columns[i].Align = text.AlignRight
		}
	}
	g.SetColumnConfigs(g.columns)
	return g
}

// AppendRow adds a row. What is text may be from outside, and is printed so that it
// does nothing to the terminal. It may have several lines.
func (g *grid) AppendRow(row table.Row, config ...table.RowConfig) {
	row = safe(row)
	g.longest = max(g.longest, text.LongestLineLen(fmt.Sprint(row[0])))
	g.Writer.AppendRow(row, config...)
}

// AppendFooter adds the last row, as AppendRow does.
func (g *grid) AppendFooter(row table.Row, config ...table.RowConfig) {
	g.Writer.AppendFooter(safe(row), config...)
}

func safe(row table.Row) table.Row {
	row = slices.Clone(row)
	for i, cell := range row {
		s, ok := cell.(string)
		if !ok {
			continue
		}
		lines := strings.Split(s, "\n")
		for i := range lines {
			lines[i] = line.Line(lines[i])
		}
		row[i] = strings.Join(lines, "\n")
	}
	return row
}

// fitted renders the table so that it fits the width; 0 means that there is no
// limit. Lines of a table that wrap cannot be read, so long texts of the first column
// lose their middle, to some length, and then columns go.
func (g *grid) fitted(width int) string {
	drawn := g.Render()
	for _, name := range g.dropped {
		if width <= 0 || text.LongestLineLen(drawn) <= width {
			break
		}
		if g.shorten(text.LongestLineLen(drawn) - width) {
			return g.Render() + "\n"
		}
		i := slices.IndexFunc(g.columns, func(c table.ColumnConfig) bool { return c.Name == name })
		if i < 0 {
			continue
		}
		g.columns[i].Hidden = true
		g.SetColumnConfigs(g.columns)
		drawn = g.Render()
	}
	return drawn + "\n"
}

// shortest is what is left of a text of the first column at least.
const shortest = 32

// shorten makes the first column narrower, if what is left of it can be read.
func (g *grid) shorten(by int) bool {
	if g.longest-by < shortest {
		return false
	}
	g.columns[0].WidthMax, g.columns[0].WidthMaxEnforcer = g.longest-by, elide
	g.SetColumnConfigs(g.columns)
	return true
}

// elide takes the middle out of a text that is longer than most characters.
func elide(s string, most int) string {
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	tail := most * 2 / 3
	return string(runes[:most-1-tail]) + "…" + string(runes[len(runes)-tail:])
}

// writeRecording prints the table of a recording, and what there is to say of
// its gaps.
func writeRecording(w io.Writer, rec nvml.Recording) {
	t := newGrid(2, []string{"Name", "Gaps", "Rate", "Duration", "Mean", "Minimum"},
		"Series", "Name", "Minimum", "Maximum", "Mean", "Duration", "Rate", "Gaps")
	var notes []string
	for _, s := range rec.Series {
		if s.Note != "" {
			notes = append(notes, noteOf(s))
		}
		if !s.Known() {
			if s.Note != "" {
				t.AppendRow(table.Row{s.Label(), s.Device.Name, "unknown", "unknown", "unknown", "-", "-", s.Gaps()})
			}
			continue // a sensor that the device does not have
		}
		t.AppendRow(table.Row{
			s.Label(), s.Device.Name, s.Format(s.Min()), s.Format(s.Max()), s.Format(s.Mean()),
			fmt.Sprintf("%.1f s", s.Duration().Seconds()), rateCell(s), s.Gaps(),
		})
	}
	io.WriteString(w, t.fitted(widthOf(w)))
	for _, note := range unique(notes) {
		fmt.Fprintln(w, note)
	}
	if rec.Failures > 0 {
		fmt.Fprintf(w, "Queries without an answer, each a gap: %d\n", rec.Failures)
	}
}

// noteOf says whose note it is; a process's own names the process.
func noteOf(s nvml.Series) string {
	if s.Quantity == nvml.ProcessMemory && strings.HasPrefix(s.Note, s.Target.String()) {
		return s.Device.Label() + " " + s.Note
	}
	return s.Label() + ": " + s.Note
}

func rateCell(s nvml.Series) string {
	if s.Len() < 3 || s.Duration() < 100*time.Millisecond { // a rate of nothing
		return "-"
	}
	return fmt.Sprintf("%.1f Hz", s.SamplingRate())
}

func unique(list []string) []string {
	seen := make(map[string]bool, len(list))
	var kept []string
	for _, s := range list {
		if !seen[s] {
			seen[s] = true
			kept = append(kept, s)
		}
	}
	return kept
}
