package snapshot

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

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
