package sections

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// The columns that an Estimate can be of.
const (
	byAllocated = "allocated"
	byRetained  = "retained"
	byPeak      = "peak"
	bySelfPeak  = "self-peak"
	byLive      = "live"
)

// byTree is the column that is in no table.
const byTree = "tree"

// checkColumn finds what is no column.
func checkColumn(name string) error {
	if name == byTree || name == "" || slices.ContainsFunc(columns(), func(known column) bool { return known.name == name }) {
		return nil
	}
	names := []string{byTree}
	for _, known := range columns() {
		names = append(names, known.name)
	}
	return fmt.Errorf("parse column %q: want one of %s", name, strings.Join(names, ", "))
}

// column is how a column is headed, ordered and printed. One that no row has
// anything for is left out of the table.
type column struct {
	name    string
	header  string
	compare func(x, y *Row) int
	has     func(r *Row) bool // nil: always
	text    func(r *Row) string
	left    bool // a text is set left, a number right
}

// columns are all columns, in their order.
var columns = sync.OnceValue(func() []column {
	return []column{
		{"path", "Section", byText(func(r *Row) string { return r.Path }), nil, func(r *Row) string { return r.Path }, true},
		number("calls", "Calls", func(r *Row) int64 { return r.Calls }, plain),
		number("time", "Time", func(r *Row) time.Duration { return r.Time }, text.Duration),
		number("gpu-time", "GPU time", func(r *Row) time.Duration { return max(0, r.DeviceTime) }, text.Duration),
		number("cpu-time", "CPU time", func(r *Row) time.Duration { return max(0, r.CPUTime) }, text.Duration),
		number("rss", "RSS", func(r *Row) alloc.Bytes { return consumed(r.RSS) }, alloc.Bytes.String),
		number("heap", "Go heap", func(r *Row) alloc.Bytes { return consumed(r.Heap) }, alloc.Bytes.String),
		number(byAllocated, "Allocated", func(r *Row) alloc.Bytes { return r.Allocated.Bytes }, alloc.Bytes.String),
		number(byRetained, "Retained/call", (*Row).Retained, alloc.Bytes.String),
		estimated("estimate", "Estimate", expected, func(r *Row) string { return expected(r).String() + " " + r.Estimate.Of }),
		estimated("difference", "Difference", (*Row).Difference, func(r *Row) string { return r.Difference().String() }),
		number(byPeak, "Peak", func(r *Row) alloc.Bytes { return r.Peak }, alloc.Bytes.String),
		number(bySelfPeak, "Self peak", func(r *Row) alloc.Bytes { return r.SelfPeak }, alloc.Bytes.String),
		number(byLive, "Live", func(r *Row) alloc.Bytes { return r.Live.Bytes }, alloc.Bytes.String),
		number("flops", "FLOPs", func(r *Row) int64 { return r.estimate().FLOPs }, scaled),
		number("params", "Params", func(r *Row) int64 { return r.estimate().Params }, plain),
		{"inputs", "Inputs", byText(inputs), func(r *Row) bool { return len(r.estimate().Inputs) > 0 }, inputs, true},
		{"line", "Call site", byText(site), nil, site, true},
	}
})

// consumed is an amount; 0 if it is not known.
func consumed(n *alloc.Bytes) alloc.Bytes {
	if n == nil {
		return 0
	}
	return *n
}

// number is a column that a row without the value shows as "-".
func number[T ~int64](name string, header string, value func(*Row) T, format func(T) string) column {
	return column{
		name:    name,
		header:  header,
		compare: func(x, y *Row) int { return cmp.Compare(value(y), value(x)) },
		has:     func(r *Row) bool { return value(r) != 0 },
		text: func(r *Row) string {
			if value(r) == 0 {
				return "-"
			}
			return format(value(r))
		},
	}
}

// estimated is a column of rows that have an estimate, 0 being a value too.
func estimated(name string, header string, value func(*Row) alloc.Bytes, text func(*Row) string) column {
	c := number(name, header, value, alloc.Bytes.String)
	c.has = func(r *Row) bool { return r.Estimate != nil }
	c.text = func(r *Row) string {
		if r.Estimate == nil {
			return "-"
		}
		return text(r)
	}
	return c
}

func expected(r *Row) alloc.Bytes { return r.estimate().Bytes }

// estimate is the row's Estimate; a zero one if it has none.
func (r *Row) estimate() Estimate {
	if r.Estimate == nil {
		return Estimate{}
	}
	return *r.Estimate
}

func byText(of func(*Row) string) func(x, y *Row) int {
	return func(x, y *Row) int { return strings.Compare(of(x), of(y)) }
}

func plain(n int64) string { return strconv.FormatInt(n, 10) }

// scaled prints a count with the decimal prefixes that FLOPs are given in.
func scaled(n int64) string {
	value, unit := float64(n), 0
	for value >= 999.95 && unit < len(decimalPrefixes)-1 {
		value /= 1000
		unit++
	}
	if unit == 0 {
		return plain(n)
	}
	return fmt.Sprintf("%.1f %s", value, decimalPrefixes[unit])
}

var decimalPrefixes = []string{"", "K", "M", "G", "T", "P", "E"}

func inputs(r *Row) string {
	var texts []string
	for _, shape := range r.estimate().Inputs {
		texts = append(texts, shape.String())
	}
	return strings.Join(texts, " ")
}

func site(r *Row) string {
	if r.CallSite == (mem.Frame{}) {
		return "-"
	}
	return r.CallSite.String()
}

// String prints a table of the rows in their order, a line each, with the whole paths.
func (p Profile) String() string {
	return layOut(p, func(r *Row) string { return r.Path })
}

// Tree prints the rows as a tree. They must be in its order, not Sorted by another.
func (p Profile) Tree() string {
	return layOut(p, func(r *Row) string {
		name := r.Path[strings.LastIndexByte(r.Path, '/')+1:]
		return strings.Repeat("  ", strings.Count(r.Path, "/")) + name
	})
}

// layOut prints a table: the name, then the columns in which any row has a value. Numbers are
// aligned right, texts left.
func layOut(rows []Row, name func(*Row) string) string {
	lines := make([]strings.Builder, len(rows)+1)
	for _, col := range columns() {
		if col.name == "path" {
			col.text = name
		}
		if col.has != nil && !slices.ContainsFunc(rows, func(r Row) bool { return col.has(&r) }) {
			continue
		}
		cells := []string{col.header}
		for i := range rows {
			cells = append(cells, text.Line(col.text(&rows[i])))
		}
		appendColumn(lines, cells, col.left)
	}
	texts := make([]string, len(lines))
	for i := range lines {
		texts[i] = strings.TrimRight(lines[i].String(), " ")
	}
	return strings.Join(texts, "\n")
}

func appendColumn(lines []strings.Builder, cells []string, left bool) {
	width := 0
	for _, cell := range cells {
		width = max(width, utf8.RuneCountInString(cell))
	}
	for i, cell := range cells {
		if lines[i].Len() > 0 {
			lines[i].WriteString("  ")
		}
		pad := strings.Repeat(" ", width-utf8.RuneCountInString(cell))
		if left {
			lines[i].WriteString(cell + pad)
		} else {
			lines[i].WriteString(pad + cell)
		}
	}
}
