package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// sensorsTable is gpulink's table, and what it lacks: names, power, utilization,
// and a dash for each sensor that a card does not have. Where it is higher than
// the screen each GPU has one line, and below that is cut.
func sensorsTable(list []nvml.Status, screen size) string {
	text := sensorsGrid(list, screen.width, clocksCell, true)
	if !screen.holds(text) {
		text = sensorsGrid(list, screen.width, smClockCell, false)
	}
	return screen.cut(text)
}

func sensorsGrid(list []nvml.Status, width int, clocks func(nvml.Reading) string, rules bool) string {
	t := newGrid(2, []string{"Name", "Fan [%]", "Power [W]", "Clock [MHz]", "Temp [°C]"},
		"GPU", "Name", "Memory", "Temp [°C]", "Fan [%]", "Clock [MHz]", "Power [W]", "Util. [%]")
	remarks := ""
	for i, s := range list {
		if i > 0 && rules {
			t.AppendSeparator()
		}
		t.AppendRow(table.Row{
			gpuCell(s.Device), s.Name, memoryCell(s.Reading), cell(s.Reading, nvml.Temperature), cell(s.Reading, nvml.FanSpeed),
			clocks(s.Reading), cell(s.Reading, nvml.Power), cell(s.Reading, nvml.Utilization),
		})
		switch {
		case s.Err != nil:
			remarks += fmt.Sprintf("%s: %v\n", s.Label(), s.Err)
		case s.Scope != nvml.OfDevice:
			remarks += fmt.Sprintf("%s: memory %v\n", s.Label(), s.Scope)
		}
	}
	return t.fitted(width) + remarks
}

func gpuCell(d nvml.Device) string {
	if d.Parent != "" {
		return fmt.Sprintf("GPU[%d.%d]", d.Index, d.MIG)
	}
	return fmt.Sprintf("GPU[%d]", d.Index)
}

// memoryCell prints "450.0 MiB / 24.0 GiB (1.8 %)".
func memoryCell(r nvml.Reading) string {
	used, ok := r.Bytes(nvml.MemoryUsed)
	total, ok2 := r.Bytes(nvml.MemoryTotal)
	if !ok || !ok2 || total == 0 {
		return "-"
	}
	return fmt.Sprintf("%v / %v (%.1f %%)", used, total, 100*float64(used)/float64(total))
}

func cell(r nvml.Reading, q nvml.Quantity) string {
	v, ok := r.Value(q)
	if !ok {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

func clocksCell(r nvml.Reading) string {
	clocks := []struct {
		name string
		q    nvml.Quantity
	}{{"Graph.", nvml.ClockGraphics}, {"Memory", nvml.ClockMemory}, {"SM", nvml.ClockSM}, {"Video", nvml.ClockVideo}}
	var lines []string
	for _, c := range clocks {
		if _, ok := r.Value(c.q); ok {
			lines = append(lines, fmt.Sprintf("%-7s %4s", c.name+":", cell(r, c.q)))
		}
	}
	if lines == nil {
		return "-"
	}
	return strings.Join(lines, "\n")
}

func smClockCell(r nvml.Reading) string {
	if _, ok := r.Value(nvml.ClockSM); !ok {
		return "-"
	}
	return "SM: " + cell(r, nvml.ClockSM)
}
