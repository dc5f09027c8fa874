package recordings

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// maxNumber bounds the text of a number.
const maxNumber = 64

// isMissing reports whether a cell says that there is no value.
func isMissing(cell string) bool {
	switch strings.ToLower(strings.Trim(cell, "[]()")) {
	case "", "-", "n/a", "na", "nan", "none", "null", "not supported", "unknown error", "unknown", "insufficient permissions", "gpu is lost", "requested functionality has been deprecated", "not available in wddm driver model":
		return true
	}
	return false
}

// number splits a cell into a number and its unit. Numbers may have a decimal comma.
func number(cell string) (v float64, unit string, ok bool) {
	end := 0
	for end < len(cell) && (cell[end] >= '0' && cell[end] <= '9' || strings.IndexByte("+-.,eE", cell[end]) >= 0) {
		if (cell[end] == 'e' || cell[end] == 'E') && (end+1 == len(cell) || strings.IndexByte("+-0123456789", cell[end+1]) < 0) {
			break
		}
		end++
	}
	text, unit := cell[:end], strings.TrimSpace(cell[end:])
	if end == 0 || end > maxNumber {
		return 0, "", false
	}
	if strings.IndexByte(text, '.') < 0 {
		text = strings.Replace(text, ",", ".", 1)
	}
	v, err := strconv.ParseFloat(text, 64)
	return v, unit, err == nil && !math.IsInf(v, 0)
}

// scaleOf returns what a value in a unit is multiplied by; "" is the column's default. Memory is in bytes.
func scaleOf(q nvml.Quantity, unit string) (float64, bool) {
	unit = strings.ToLower(unit)
	switch q {
	case nvml.Utilization, nvml.FanSpeed:
		return 1, unit == "%" || unit == "percent" || unit == "pct"
	case nvml.Power:
		switch unit {
		case "w", "watt", "watts":
			return 1, true
		case "mw":
			return 1e-3, true
		}
	case nvml.Temperature:
		switch unit {
		case "c", "°c", "celsius":
			return 1, true
		}
	case nvml.ClockGraphics, nvml.ClockMemory, nvml.ClockSM, nvml.ClockVideo:
		switch unit {
		case "mhz":
			return 1, true
		case "ghz":
			return 1e3, true
		}
	default:
		switch unit {
		case "b", "byte", "bytes":
			return 1, true
		case "k", "kb", "kib":
			return 1 << 10, true
		case "m", "mb", "mib":
			return 1 << 20, true
		case "g", "gb", "gib":
			return 1 << 30, true
		case "t", "tb", "tib":
			return 1 << 40, true
		}
	}
	return 0, false
}

// set sets a quantity from a cell, in its own unit or else in the column's. It returns false for a cell that is no value.
func (f *feed) set(r *nvml.Reading, q nvml.Quantity, cell, columnUnit string) bool {
	if isMissing(cell) {
		return false
	}
	v, unit, ok := number(cell)
	if unit == "" {
		unit = columnUnit
	}
	scale, known := scaleOf(q, unit)
	v *= scale
	if !ok || !known || v < 0 && q != nvml.Temperature || math.Abs(v) >= math.MaxInt64 {
		f.unknownUnit(cell)
		return false
	}
	r.Set(q, v)
	return true
}

// The forms of times. A fraction of a second may follow the seconds in each.
var (
	datedForms = []string{
		"2006/01/02 15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04:05", "2006-01-02T15:04:05Z07:00", "2006-01-02 15:04:05Z07:00",
		"Mon Jan _2 15:04:05 2006", "20060102 15:04:05", "01/02/2006 15:04:05", "2006/01/02-15:04:05",
	}
	timeForm = "15:04:05"
)

// parser reads times. It tries first what fitted last.
type parser struct {
	location *time.Location
	form     string
}

func (p *parser) parse(cell string) (at moment) {
	if len(cell) > maxNumber || len(cell) < len(timeForm) {
		return moment{}
	}
	if cell[0] >= '0' && cell[0] <= '9' && strings.IndexByte(cell, ':') < 0 {
		return epoch(cell)
	}
	location := p.location
	if location == nil {
		location = time.Local
	}
	if p.form != "" {
		if t, err := time.ParseInLocation(p.form, cell, location); err == nil {
			return moment{t, true, p.form != timeForm}
		}
	}
	if t, err := time.ParseInLocation(timeForm, cell, time.UTC); err == nil {
		p.form = timeForm
		return moment{t, true, false}
	}
	for _, form := range datedForms {
		if t, err := time.ParseInLocation(form, cell, location); err == nil {
			p.form = form
			return moment{t, true, true}
		}
	}
	return moment{}
}

// atSeconds is the moment of a number of seconds: since 1970, or since the start of a machine, which has no date.
func atSeconds(seconds float64) moment {
	const dated = 1e9 // September 2001
	return moment{time.Unix(0, int64(seconds*1e9)).UTC(), true, seconds >= dated}
}

// epoch reads seconds since 1970, or milliseconds, microseconds or nanoseconds: the years 2001 to 2286 tell them apart.
func epoch(cell string) moment {
	v, err := strconv.ParseFloat(cell, 64)
	if err != nil {
		return moment{}
	}
	for _, unit := range []float64{1, 1e3, 1e6, 1e9} {
		if s := v / unit; s >= 1e9 && s < 1e10 {
			return moment{time.Unix(0, int64(s*1e9)), true, true}
		}
	}
	return moment{}
}
