package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	line "github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// NewTable returns a table with a heading. The first columns, as many as left says, are aligned
// left and the others right. Render prints it.
func NewTable(w io.Writer, left int, heading ...any) table.Writer {
	g := NewGrid(left, nil, heading...)
	g.SetOutputMirror(w)
	return g
}

// Grid is a table that fits the terminal.
type Grid struct {
	table.Writer
	columns []table.ColumnConfig
	dropped []string // the columns that are left out on a narrow terminal, in this order
	longest int      // length of the longest cell in the first column
}

// NewGrid returns a table like NewTable's, which Fitted can cut to the terminal's width. dropped
// lists the columns that a narrow terminal loses, in this order.
func NewGrid(left int, dropped []string, heading ...any) *Grid {
	g := &Grid{Writer: table.NewWriter(), dropped: dropped}
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

// AppendRow adds a row. Text may come from outside, so what would control the terminal is escaped.
// It may have several lines.
func (g *Grid) AppendRow(row table.Row, config ...table.RowConfig) {
	row = safe(row)
	g.longest = max(g.longest, text.LongestLineLen(fmt.Sprint(row[0])))
	g.Writer.AppendRow(row, config...)
}

// AppendFooter adds the last row, as AppendRow does.
func (g *Grid) AppendFooter(row table.Row, config ...table.RowConfig) {
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

// Fitted renders the table to fit the width; 0 means without limit. A table with wrapped lines
// cannot be read, so long texts of the first column are shortened first, then columns are left
// out.
func (g *Grid) Fitted(width int) string {
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

// shortest is the least number of characters that is left of such a text.
const shortest = 32

// shorten makes the first column narrower. It returns false if too little of it would be left.
func (g *Grid) shorten(by int) bool {
	if g.longest-by < shortest {
		return false
	}
	g.columns[0].WidthMax, g.columns[0].WidthMaxEnforcer = g.longest-by, Elide
	g.SetColumnConfigs(g.columns)
	return true
}

// Elide removes the middle of a text that is longer than most characters.
func Elide(s string, most int) string {
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	tail := most * 2 / 3
	return string(runes[:most-1-tail]) + "…" + string(runes[len(runes)-tail:])
}

// MemoryTable returns a table whose last line is the sum of the others. A narrow terminal loses the
// column dropped first, then the count, then the columns that compare processes.
func MemoryTable(dropped string, heading ...any) *Grid {
	t := NewGrid(1, []string{dropped, "Count", "Spread", "In", "Most"}, heading...)
	t.Style().Format.Footer = text.FormatDefault
	for i := range t.columns[1:] {
		t.columns[i+1].AlignHeader, t.columns[i+1].AlignFooter = text.AlignRight, text.AlignRight
	}
	t.SetColumnConfigs(t.columns)
	return t
}

// Signed prints a change, with a plus if it is above zero.
func Signed(b alloc.Bytes) string {
	if b > 0 {
		return "+" + b.String()
	}
	return b.String()
}

// Warnings are sentences about GPUs. Each is printed once, with all GPUs that it is true of. The zero value has none.
type Warnings struct {
	texts []string
	of    map[string][]nvml.Device
}

// Add adds what follows a GPU's name, as in ": it does not answer".
func (r *Warnings) Add(d nvml.Device, text string) {
	if r.of == nil {
		r.of = make(map[string][]nvml.Device)
	}
	if _, ok := r.of[text]; !ok {
		r.texts = append(r.texts, text)
	}
	if !slices.Contains(r.of[text], d) {
		r.of[text] = append(r.of[text], d)
	}
}

// Lines returns the warnings in their order.
func (r *Warnings) Lines() (all []string) {
	for _, text := range r.texts {
		all = append(all, labels(r.of[text])+text)
	}
	return all
}

// labels names several GPUs: "GPU 0 to 15", "GPU 1, 3, 5 to 7", "GPU 0 MIG 1, GPU 0 MIG 2".
func labels(devices []nvml.Device) string {
	var all []string
	whole := 0 // of the GPUs before, those that are no part of another
	for i := 0; i < len(devices); i++ {
		d := devices[i]
		if d.Parent != "" {
			all = append(all, d.Label())
			continue
		}
		last := i
		for last+1 < len(devices) && devices[last+1].Parent == "" && devices[last+1].Index == devices[last].Index+1 {
			last++
		}
		label := d.Label()
		if whole > 0 {
			label = fmt.Sprint(d.Index)
		}
		switch last - i {
		case 0:
		case 1:
			label += fmt.Sprintf(", %d", devices[last].Index)
		default:
			label += fmt.Sprintf(" to %d", devices[last].Index)
		}
		all, i = append(all, label), last
		whole++
	}
	return strings.Join(all, ", ")
}
