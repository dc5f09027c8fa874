package chart

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// unitsOf returns the units of the series, in the order of their first use.
func unitsOf(series []nvml.Series) []string {
	var units []string
	for _, s := range series {
		if !slices.Contains(units, s.Quantity.Unit()) {
			units = append(units, s.Quantity.Unit())
		}
	}
	return units
}

func (f *figure) newPanel(unit string) panel {
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
	if series[0].Quantity.Unit() == "MB" {
		p.Name = "memory"
		p.Max = withCapacity(p.Max, series)
		scale, p.Unit = binaryUnit(p.Max)
		p.Rules = rulesOf(series, p.Max, scale)
	}
	p.Max /= scale
	for i, s := range series {
		l := line{
			Name: f.nameOf(s), Label: f.labelOf(s), Color: colorOf(s, f.series, series), Under: countSame(s, series[i+1:]),
			Process: s.Quantity == nvml.ProcessMemory, Stepped: s.Quantity.Unit() == "MB",
		}
		if l.Process {
			l.parts, l.dots = f.heldParts(s, deviceOf(s, series), scale)
			if len(l.dots) > f.width/8 { // they would run together
				l.dots = nil
			}
		} else {
			l.parts = f.partsOf(s, scale)
		}
		if s.Quantity == nvml.MemoryUsed {
			l.peak = f.peakOf(s, scale)
		}
		p.Lines = append(p.Lines, l)
	}
	return p
}

// withModel adds to a title the model of all GPUs of a chart that has several. It is not told with each line then.
func (f *figure) withModel(title string) string {
	var devices []string
	for _, s := range f.series {
		if s.Device.Name == "" || s.Device.Name != f.series[0].Device.Name {
			return title
		}
		if !slices.Contains(devices, s.Device.Label()) {
			devices = append(devices, s.Device.Label())
		}
	}
	if len(devices) < 2 {
		return title
	}
	f.oneModel = true
	model := fmt.Sprintf("%d x %s", len(devices), f.series[0].Device.Name)
	if title == "" {
		return model
	}
	return title + ", " + model
}

// nameOf says what a line shows, and the model of its GPU.
func (f *figure) nameOf(s nvml.Series) string {
	if s.Device.Name != "" && !f.oneModel && s.Quantity != nvml.ProcessMemory {
		return s.Label() + ", " + s.Device.Name
	}
	return s.Label()
}

// labelOf says in a picture how high a line gets too: it has no table.
func (f *figure) labelOf(s nvml.Series) string {
	label := f.nameOf(s)
	if s.Quantity != nvml.MemoryUsed && s.Quantity != nvml.ProcessMemory {
		return label
	}
	label += ", peak " + s.Quantity.Format(s.Max())
	if s.Quantity == nvml.MemoryUsed && s.Capacity > 0 {
		label += " of " + s.Capacity.String()
	}
	return label
}

// withCapacity is how high an axis of memory goes: to a device's capacity where a
// line comes near it, or where no line moves, so that one sees how much it is.
func withCapacity(highest float64, series []nvml.Series) float64 {
	capacity, flat := 0.0, true
	for _, s := range series {
		capacity = max(capacity, float64(s.Capacity))
		flat = flat && s.Min() == s.Max()
	}
	if flat || highest > 0.6*capacity {
		return max(highest, capacity)
	}
	return highest
}

// rulesOf marks the capacities that the axis reaches.
func rulesOf(series []nvml.Series, highest, scale float64) []rule {
	var rules []rule
	for _, s := range series {
		y := float64(s.Capacity) / scale
		if s.Capacity > 0 && float64(s.Capacity) <= highest && !slices.ContainsFunc(rules, func(r rule) bool { return r.Y == y }) {
			rules = append(rules, rule{"capacity " + s.Capacity.String(), y})
		}
	}
	return rules
}

// countSame returns how many of the others look like s, by number of samples, minimum, maximum and mean: one line hides the other.
func countSame(s nvml.Series, others []nvml.Series) (n int) {
	for _, o := range others {
		if o.Quantity != nvml.ProcessMemory && s.Quantity != nvml.ProcessMemory &&
			s.Min() == o.Min() && s.Max() == o.Max() && s.Mean() == o.Mean() && s.Len() == o.Len() {
			n++
		}
	}
	return n
}

// deviceOf returns the series of the device's memory that a process's belongs to.
func deviceOf(s nvml.Series, series []nvml.Series) nvml.Series {
	for _, o := range series {
		if o.Quantity == nvml.MemoryUsed && o.Device == s.Device {
			return o
		}
	}
	return nvml.Series{}
}

// panelName returns what the names of a panel's series have in common.
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

// colorOf gives a device one color in all panels, and its quantities in a panel different dashes. The quantities of a lone device have
// colors of their own. A process has its device's color.
func colorOf(s nvml.Series, all, panel []nvml.Series) int {
	device, devices := place(s, all, func(s nvml.Series) nvml.Device { return s.Device })
	quantity, quantities := place(s, panel, func(s nvml.Series) string {
		if s.Quantity == nvml.ProcessMemory {
			return nvml.MemoryUsed.Key()
		}
		return s.Quantity.Key()
	})
	if devices == 1 {
		return quantity
	}
	n := len(palette)
	return device%n + n*(device/n*quantities+quantity)
}

// place returns the place of a series' key among the different keys of all, and how many there are.
func place[K comparable](s nvml.Series, all []nvml.Series, key func(nvml.Series) K) (at, of int) {
	var keys []K
	for _, o := range all {
		if !slices.Contains(keys, key(o)) {
			keys = append(keys, key(o))
		}
	}
	return slices.Index(keys, key(s)), len(keys)
}

// partsOf splits a series at its gaps. A point of several samples is drawn as
// its minimum and its maximum, so that no peak is lost. One from before the chart's
// beginning holds there.
func (f *figure) partsOf(s nvml.Series, scale float64) [][]sample {
	var parts [][]sample
	var part []sample
	for t, v := range s.Points() {
		if !math.IsNaN(v) {
			part = append(part, sample{max(t.Seconds(), f.from), v / scale})
		} else if part != nil {
			parts, part = append(parts, part), nil
		}
	}
	if part == nil {
		return parts
	}
	if n := len(part); s.Quantity.Unit() == "MB" && holdsUntil(s, f.to) {
		part = append(part, sample{f.to, part[n-1].y})
	}
	return append(parts, part)
}

// holdsUntil reports whether the last sample of a series is drawn to the chart's end:
// if no two are missing there.
func holdsUntil(s nvml.Series, end float64) bool {
	_, last := s.Span()
	interval := 1.0
	if rate := samplingRate(s); rate > 0 {
		interval = 1 / rate
	}
	rest := end - last.Seconds()
	return !s.Ended && rest > 0 && rest < 2*interval
}

// moment is what a series has at one time, in seconds: samples from low to high, or NaN for a gap.
type moment struct{ at, low, high float64 }

func pointsOf(s nvml.Series) (points []moment) {
	for t, v := range s.Points() {
		at, last := t.Seconds(), len(points)-1
		if last >= 0 && points[last].at == at && v > points[last].low {
			points[last].high = max(points[last].high, v)
			continue
		}
		points = append(points, moment{at, v, v})
	}
	return points
}

// samplingRate returns the samples per second, or 0 if there are fewer than two.
func samplingRate(s nvml.Series) float64 {
	if s.Duration() <= 0 {
		return 0
	}
	return float64(s.Len()-1) / s.Duration().Seconds()
}

// heldParts draws a process, which is asked for less often than its device. Its value is assumed to
// stay until the device's memory changes; from then on it is unknown, so the line ends there unless
// the process's next sample comes first.
func (f *figure) heldParts(s, device nvml.Series, scale float64) (parts [][]sample, dots []sample) {
	changes := changesOf(device)
	points := pointsOf(s)
	var part []sample
	end := func() {
		if part != nil {
			parts, part = append(parts, part), nil
		}
	}
	for i, p := range points {
		if math.IsNaN(p.low) {
			end()
			continue
		}
		at := p.at
		here := sample{max(at, f.from), p.high / scale}
		part, dots = append(part, here), append(dots, here)
		next := f.to
		if i+1 < len(points) {
			next = points[i+1].at
		} else if !holdsUntil(s, f.to) {
			break
		}
		k, _ := slices.BinarySearchFunc(changes, at, func(change, at float64) int {
			if change <= at {
				return -1
			}
			return 1
		})
		if k < len(changes) && changes[k] < next {
			part = append(part, sample{max(changes[k], f.from), here.y})
			end()
		} else if i+1 == len(points) {
			part = append(part, sample{f.to, here.y})
		}
	}
	end()
	return parts, dots
}

// changesOf returns the times at which a device's memory was seen to have changed.
func changesOf(device nvml.Series) []float64 {
	var times []float64
	var before *moment
	for _, p := range pointsOf(device) {
		if math.IsNaN(p.low) {
			continue
		}
		if before != nil && (p.low != before.low || p.high != before.high) {
			times = append(times, p.at)
		}
		before = &p
	}
	return times
}

// peakOf returns the highest sample of a series.
func (f *figure) peakOf(s nvml.Series, scale float64) *sample {
	for t, v := range s.Points() {
		if v == s.Max() && v > 0 {
			return &sample{max(t.Seconds(), f.from), v / scale}
		}
	}
	return nil
}
