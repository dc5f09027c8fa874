package chart

import (
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// unitsOf returns the units that series have, in the order of their first use.
func unitsOf(series []nvml.Series) []string {
	var units []string
	for _, s := range series {
		if !slices.Contains(units, s.Quantity.Unit()) {
			units = append(units, s.Quantity.Unit())
		}
	}
	return units
}

func (f *Figure) newPanel(unit string) panel {
	var p panel
	var series []nvml.Series
	for _, s := range f.series {
		if s.Quantity.Unit() == unit {
			series = append(series, s)
			p.Max = max(p.Max, s.Max())
		}
	}
	scale := 1.0
	p.Name, p.Unit = panelName(series), unit
	if series[0].Quantity.IsMemory() {
		p.Name = "memory"
		scale, p.Unit = binaryUnit(p.Max)
	}
	p.Max /= scale
	colors := make(map[string]int)
	for _, s := range series {
		p.Lines = append(p.Lines, line{
			Label: s.Label(), Color: colorOf(colors, s), Dashed: isDashed(s, series),
			Stepped: s.Quantity.IsMemory(), parts: f.partsOf(s, scale),
		})
	}
	return p
}

// panelName is what the series of a panel have in common.
func panelName(series []nvml.Series) string {
	name := series[0].Quantity.String()
	for _, s := range series[1:] {
		if s.Quantity.String() == name {
			continue
		}
		if strings.HasSuffix(name, "clock") {
			return "clock"
		}
		return "share"
	}
	return name
}

// binaryUnit returns the largest unit that is not larger than the maximum.
func binaryUnit(maximum float64) (scale float64, name string) {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for scale = 1; i < len(units)-1 && maximum >= scale*float64(alloc.KiB); i++ {
		scale *= float64(alloc.KiB)
	}
	return scale, units[i]
}

// colorOf gives a device's memory and its process's one color, and every other
// quantity of a device its own.
func colorOf(colors map[string]int, s nvml.Series) int {
	key := s.Device.UUID
	if !s.Quantity.IsMemory() {
		key += s.Quantity.Key()
	}
	if _, ok := colors[key]; !ok {
		colors[key] = len(colors)
	}
	return colors[key]
}

// isDashed reports whether s is a device's total beside its process's part.
func isDashed(s nvml.Series, series []nvml.Series) bool {
	return s.Quantity == nvml.MemoryUsed && slices.ContainsFunc(series, func(o nvml.Series) bool {
		return o.Quantity == nvml.ProcessMemory && o.Device.UUID == s.Device.UUID
	})
}

// partsOf splits a series at its gaps. A point of several samples is drawn as
// its minimum and its maximum, so that no peak is lost. One from before the chart's
// beginning holds there.
func (f *Figure) partsOf(s nvml.Series, scale float64) [][]sample {
	var parts [][]sample
	var part []sample
	for p := range s.Points() {
		if p.IsGap() {
			if part != nil {
				parts, part = append(parts, part), nil
			}
			continue
		}
		x := max(p.Time.Seconds(), f.from)
		part = append(part, sample{x, p.Min / scale})
		if p.Max > p.Min {
			part = append(part, sample{x, p.Max / scale})
		}
	}
	if part == nil {
		return parts
	}
	if n := len(part); s.Quantity.IsMemory() && holdsUntil(s, f.to) {
		part = append(part, sample{f.to, part[n-1].y})
	}
	return append(parts, part)
}

// holdsUntil reports whether the last sample of a series, a process's that is
// asked for less often, is drawn to the chart's end: if no two are missing there.
func holdsUntil(s nvml.Series, end float64) bool {
	_, last := s.Span()
	interval := 1.0
	if rate := s.SamplingRate(); rate > 0 {
		interval = 1 / rate
	}
	rest := end - last.Seconds()
	return !s.Ended && rest > 0 && rest < 2*interval
}
