package snapshot

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Column is a column of a Profile's table.
type Column uint8

// The columns. The zero Column is the order of the tree.
const (
	ByTree Column = iota
	ByPath
	ByCalls
	ByTime
	ByDeviceTime
	ByCPUTime
	ByRSS
	ByHeap
	ByAllocated
	ByKept
	ByEstimate
	ByDifference
	ByPeak
	ByOwnPeak
	ByLive
	ByFLOPs
	ByParams
	ByInputs
	BySite
)

var columnNames = [...]string{
	ByTree: "tree", ByPath: "path", ByCalls: "calls", ByTime: "time", ByDeviceTime: "gpu-time", ByCPUTime: "cpu-time",
	ByRSS: "rss", ByHeap: "heap", ByAllocated: "allocated", ByKept: "kept", ByEstimate: "estimate",
	ByDifference: "difference", ByPeak: "peak", ByOwnPeak: "own-peak", ByLive: "live",
	ByFLOPs: "flops", ByParams: "params", ByInputs: "inputs", BySite: "site",
}

// String returns the column's name: "own-peak".
func (c Column) String() string {
	if int(c) < len(columnNames) {
		return columnNames[c]
	}
	return fmt.Sprintf("Column(%d)", uint8(c))
}

// MarshalText writes the column's name.
func (c Column) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads a column as ParseColumn does.
func (c *Column) UnmarshalText(text []byte) (err error) {
	*c, err = ParseColumn(string(text))
	return err
}

// ParseColumn reads a name that String writes. The error lists the names.
func ParseColumn(name string) (Column, error) {
	if i := slices.Index(columnNames[:], name); i >= 0 {
		return Column(i), nil
	}
	return 0, fmt.Errorf("parse column %q: want one of %s", name, strings.Join(columnNames[:], ", "))
}

// column is how a column is headed, ordered and printed. One that no row has
// anything for is left out of the table.
type column struct {
	header  string
	compare func(x, y *ProfileRow) int
	has     func(r *ProfileRow) bool // nil: always
	text    func(r *ProfileRow) string
}

var columns = [...]column{
	ByTree:       {},
	ByPath:       {"Section", byText(func(r *ProfileRow) string { return r.Path }), nil, func(r *ProfileRow) string { return r.Path }},
	ByCalls:      number("Calls", func(r *ProfileRow) int64 { return r.Calls }, plain),
	ByTime:       number("Time", func(r *ProfileRow) time.Duration { return r.Time }, short),
	ByDeviceTime: number("GPU time", func(r *ProfileRow) time.Duration { return max(0, r.DeviceTime) }, short),
	ByCPUTime:    number("CPU time", func(r *ProfileRow) time.Duration { return r.CPUTime }, short),
	ByRSS:        number("RSS", func(r *ProfileRow) alloc.Bytes { return r.RSS }, alloc.Bytes.String),
	ByHeap:       number("Go heap", func(r *ProfileRow) alloc.Bytes { return r.Heap }, alloc.Bytes.String),
	ByAllocated:  number("Allocated", func(r *ProfileRow) alloc.Bytes { return r.Allocated.Bytes }, alloc.Bytes.String),
	ByKept:       number("Kept/call", (*ProfileRow).Kept, alloc.Bytes.String),
	ByEstimate:   estimated("Estimate", expected, func(r *ProfileRow) string { return expected(r).String() + " " + r.Estimate.Of.String() }),
	ByDifference: estimated("Difference", (*ProfileRow).Difference, func(r *ProfileRow) string { return r.Difference().String() }),
	ByPeak:       number("Peak", func(r *ProfileRow) alloc.Bytes { return r.Peak }, alloc.Bytes.String),
	ByOwnPeak:    number("Own peak", func(r *ProfileRow) alloc.Bytes { return r.OwnPeak }, alloc.Bytes.String),
	ByLive:       number("Live", func(r *ProfileRow) alloc.Bytes { return r.Live.Bytes }, alloc.Bytes.String),
	ByFLOPs:      number("FLOPs", func(r *ProfileRow) int64 { return r.FLOPs }, scaled),
	ByParams:     number("Params", func(r *ProfileRow) int64 { return r.Params }, plain),
	ByInputs:     {"Inputs", byText(inputs), func(r *ProfileRow) bool { return len(r.Inputs) > 0 }, inputs},
	BySite:       {"Call site", byText(site), nil, site},
}

// number is a column that a row without the value shows as "-".
func number[T ~int64](header string, value func(*ProfileRow) T, print func(T) string) column {
	return column{
		header:  header,
		compare: func(x, y *ProfileRow) int { return cmp.Compare(value(y), value(x)) },
		has:     func(r *ProfileRow) bool { return value(r) != 0 },
		text: func(r *ProfileRow) string {
			if value(r) == 0 {
				return "-"
			}
			return print(value(r))
		},
	}
}

// estimated is a column of rows that have an estimate, 0 being a value too.
func estimated(header string, value func(*ProfileRow) alloc.Bytes, text func(*ProfileRow) string) column {
	c := number(header, value, alloc.Bytes.String)
	c.has = func(r *ProfileRow) bool { return r.Estimate != nil }
	c.text = func(r *ProfileRow) string {
		if r.Estimate == nil {
			return "-"
		}
		return text(r)
	}
	return c
}

func expected(r *ProfileRow) alloc.Bytes {
	if r.Estimate == nil {
		return 0
	}
	return r.Estimate.Bytes
}

func byText(text func(*ProfileRow) string) func(x, y *ProfileRow) int {
	return func(x, y *ProfileRow) int { return strings.Compare(text(x), text(y)) }
}

func plain(n int64) string { return strconv.FormatInt(n, 10) }

func short(d time.Duration) string {
	if d < time.Millisecond {
		return d.Round(100 * time.Nanosecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}

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

func inputs(r *ProfileRow) string {
	texts := make([]string, len(r.Inputs))
	for i, shape := range r.Inputs {
		texts[i] = shape.String()
	}
	return strings.Join(texts, " ")
}

func site(r *ProfileRow) string {
	if r.Site.IsZero() {
		return "-"
	}
	return r.Site.String()
}

// Table prints the rows in their order, a line each, with the whole paths.
func (p *Profile) Table() string {
	return layOut(p.sorted(), func(r *ProfileRow) string { return r.Path })
}

// Tree prints the rows as a tree, in the order of the tree.
func (p *Profile) Tree() string {
	return layOut(p.rows, func(r *ProfileRow) string {
		name := r.Path[strings.LastIndexByte(r.Path, '/')+1:]
		return strings.Repeat("  ", strings.Count(r.Path, "/")) + name
	})
}

// layOut prints a table: the first column by name, then those that any row has
// something for. Numbers are set right, texts left.
func layOut(rows []ProfileRow, name func(*ProfileRow) string) string {
	lines := make([]strings.Builder, len(rows)+1)
	for c := ByPath; int(c) < len(columns); c++ {
		col := columns[c]
		if c == ByPath {
			col.text = name
		}
		if col.has != nil && !slices.ContainsFunc(rows, func(r ProfileRow) bool { return col.has(&r) }) {
			continue
		}
		cells := []string{col.header}
		for i := range rows {
			cells = append(cells, col.text(&rows[i]))
		}
		appendColumn(lines, cells, c == ByPath || c == ByInputs || c == BySite)
	}
	var text strings.Builder
	for i := range lines {
		text.WriteString(strings.TrimRight(lines[i].String(), " ") + "\n")
	}
	return text.String()
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
