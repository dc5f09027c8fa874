package recordings

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// The formats, as File.Format has them.
const (
	formatQuery   = "nvidia-smi --query-gpu"
	formatSummary = "nvidia-smi"
	formatApps    = "nvidia-smi --query-compute-apps"
	formatDmon    = "nvidia-smi dmon"
	formatPmon    = "nvidia-smi pmon"
	formatXML     = "nvidia-smi -q -x"
	formatAMD     = "amd-smi"
	formatROCm    = "rocm-smi"
	formatGpustat = "gpustat --json"
	formatNvitop  = "nvitop"

	formatTimeline = "export_memory_timeline of PyTorch's profiler"
)

// role is what a column holds beside quantities.
type role int

const (
	noRole role = iota
	timeRole
	dateRole // of dmon, whose time is in a column of its own
	indexRole
	uuidRole
	busRole
	nameRole
	pidRole
	quantityRole
)

// meaning is what the name of a column stands for.
type meaning struct {
	role     role
	quantity nvml.Quantity
	unit     string // where neither the header nor the cell has one
	rank     int    // of several columns with one meaning the lowest counts
}

// meanings are the names of columns, as canonical writes them.
var meanings = map[string]meaning{
	"timestamp": {role: timeRole}, "time": {role: timeRole, rank: 1}, "datetime": {role: timeRole, rank: 2}, "date time": {role: timeRole, rank: 2},
	"index": {role: indexRole}, "gpu": {role: indexRole, rank: 1}, "gpu.id": {role: indexRole, rank: 1}, "gpu.index": {role: indexRole, rank: 1},
	"device": {role: indexRole, rank: 2}, "card": {role: indexRole, rank: 2}, "gpu.number": {role: indexRole, rank: 2}, "id": {role: indexRole, rank: 3},
	"uuid": {role: uuidRole}, "gpu.uuid": {role: uuidRole}, "unique.id": {role: uuidRole, rank: 1},
	"pci.bus.id": {role: busRole}, "gpu.bus.id": {role: busRole}, "bdf": {role: busRole, rank: 1}, "pci.bus": {role: busRole, rank: 1},
	"name": {role: nameRole}, "gpu.name": {role: nameRole}, "card.series": {role: nameRole}, "product.name": {role: nameRole}, "market.name": {role: nameRole},
	"pid": {role: pidRole},

	"memory.used": of(nvml.MemoryUsed, "MiB", 0), "mem.used": of(nvml.MemoryUsed, "MiB", 1), "used.memory": of(nvml.MemoryUsed, "MiB", 1), "vram.used": of(nvml.MemoryUsed, "MiB", 1),
	"used.vram": of(nvml.MemoryUsed, "MiB", 1), "vram.total.used.memory": of(nvml.MemoryUsed, "B", 1), "fb.used": of(nvml.MemoryUsed, "MiB", 1), "used.gpu.memory": of(nvml.MemoryUsed, "MiB", 1),
	"memory.free": of(nvml.MemoryFree, "MiB", 0), "mem.free": of(nvml.MemoryFree, "MiB", 1), "vram.free": of(nvml.MemoryFree, "MiB", 1), "free.vram": of(nvml.MemoryFree, "MiB", 1),
	"memory.total": of(nvml.MemoryTotal, "MiB", 0), "mem.total": of(nvml.MemoryTotal, "MiB", 1), "vram.total": of(nvml.MemoryTotal, "MiB", 1), "total.vram": of(nvml.MemoryTotal, "MiB", 1),
	"vram.total.memory": of(nvml.MemoryTotal, "B", 1), "total.memory": of(nvml.MemoryTotal, "MiB", 1),
	"memory.reserved": of(nvml.DriverReserved, "MiB", 0),

	"utilization.gpu": of(nvml.Utilization, "%", 0), "gpu.utilization": of(nvml.Utilization, "%", 1), "gpu.use": of(nvml.Utilization, "%", 1), "gfx.activity": of(nvml.Utilization, "%", 1),
	"gfx": of(nvml.Utilization, "%", 2), "gpu.util": of(nvml.Utilization, "%", 1), "utilization": of(nvml.Utilization, "%", 2),

	"power.draw": of(nvml.Power, "W", 0), "power.draw.instant": of(nvml.Power, "W", 1), "power.draw.average": of(nvml.Power, "W", 2), "power.usage": of(nvml.Power, "W", 1), "socket.power": of(nvml.Power, "W", 1),
	"average.socket.power": of(nvml.Power, "W", 2), "current.socket.power": of(nvml.Power, "W", 1), "average.graphics.package.power": of(nvml.Power, "W", 1), "current.socket.graphics.package.power": of(nvml.Power, "W", 1),

	"temperature.gpu": of(nvml.Temperature, "C", 0), "temperature": of(nvml.Temperature, "C", 1), "temperature.sensor.edge": of(nvml.Temperature, "C", 1), "temperature.sensor.junction": of(nvml.Temperature, "C", 2),
	"edge": of(nvml.Temperature, "C", 1), "edge.temperature": of(nvml.Temperature, "C", 1), "hotspot": of(nvml.Temperature, "C", 2), "hotspot.temperature": of(nvml.Temperature, "C", 2),

	"fan.speed": of(nvml.FanSpeed, "%", 0),

	"clocks.gr": of(nvml.ClockGraphics, "MHz", 0), "clocks.current.graphics": of(nvml.ClockGraphics, "MHz", 0), "gfx.clk": of(nvml.ClockGraphics, "MHz", 1), "gfx.clock": of(nvml.ClockGraphics, "MHz", 1), "gfx.0.clk": of(nvml.ClockGraphics, "MHz", 2),
	"clocks.mem": of(nvml.ClockMemory, "MHz", 0), "clocks.current.memory": of(nvml.ClockMemory, "MHz", 0), "mem.clk": of(nvml.ClockMemory, "MHz", 1), "mem.clock": of(nvml.ClockMemory, "MHz", 1), "mem.0.clk": of(nvml.ClockMemory, "MHz", 2),
	"clocks.sm": of(nvml.ClockSM, "MHz", 0), "clocks.current.sm": of(nvml.ClockSM, "MHz", 0),
	"clocks.video": of(nvml.ClockVideo, "MHz", 0), "clocks.current.video": of(nvml.ClockVideo, "MHz", 0),
}

// monitorMeanings are the names of the columns of dmon and pmon. Those of the other tables are no columns there: mem is a
// share of time.
var monitorMeanings = map[string]meaning{
	"date": {role: dateRole}, "time": {role: timeRole}, "gpu": {role: indexRole}, "pid": {role: pidRole},
	"fb": of(nvml.MemoryUsed, "MB", 0), "pwr": of(nvml.Power, "W", 0), "gtemp": of(nvml.Temperature, "C", 0), "temp": of(nvml.Temperature, "C", 1),
	"sm": of(nvml.Utilization, "%", 0), "mclk": of(nvml.ClockMemory, "MHz", 0), "pclk": of(nvml.ClockSM, "MHz", 0),
}

func of(q nvml.Quantity, unit string, rank int) meaning {
	return meaning{role: quantityRole, quantity: q, unit: unit, rank: rank}
}

// unitIn matches the unit that a header has behind a name: "memory.used [MiB]", "GPU use (%)".
var unitIn = regexp.MustCompile(`^(.*?)\s*[\[(]\s*([^\[\]()]*)[\])]$`)

// canonical returns a name in small letters, with dots between the words, and the unit behind it.
func canonical(name string) (plain, unit string) {
	name = strings.TrimSpace(name)
	if len(name) > 256 {
		return "", ""
	}
	if m := unitIn.FindStringSubmatch(name); m != nil {
		name, unit = m[1], m[2]
	}
	plain = strings.Join(strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return strings.ContainsRune(" ._-/()[]:", r) }), ".")
	return plain, unit
}

// unitNames end the names of columns that people make themselves: "memory_used_mb".
var unitNames = []string{"mib", "mb", "gib", "gb", "kib", "kb", "bytes", "percent", "pct", "watts", "w", "mhz", "c"}

// meaningOf returns what a column's name stands for, and the unit of its values.
func meaningOf(name string) (meaning, bool) {
	plain, unit := canonical(name)
	for _, form := range []string{plain, strings.TrimPrefix(plain, "gpu.")} {
		m, ok := meanings[form]
		if !ok {
			if head, last := cutLast(form); slices.Contains(unitNames, last) {
				if m, ok = meanings[head]; ok && unit == "" {
					unit = last
				}
			}
		}
		if !ok {
			continue
		}
		if unit != "" {
			m.unit = unit
		}
		return m, true
	}
	return meaning{}, false
}

func cutLast(name string) (head, last string) {
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return "", name
	}
	return name[:i], name[i+1:]
}

// collected matches a key of nvitop: "metrics-daemon/cuda:0 (gpu:3)/memory_used (MiB)/max".
var collected = regexp.MustCompile(`(?:^|/)(?:cuda:\d+ \()?gpu:(\d{1,4})(?::\d+)?\)?/([^/]+)/(mean|max|min|last)$`)

// collectedMeaning returns the GPU and the meaning of a key of nvitop. Of memory the largest value counts, of the rest the mean.
func collectedMeaning(key string) (index int, m meaning, ok bool) {
	if len(key) > 256 || strings.Contains(key, "pid:") {
		return 0, m, false
	}
	found := collected.FindStringSubmatch(key)
	if found == nil {
		return 0, m, false
	}
	if m, ok = meaningOf(found[2]); !ok || m.role != quantityRole {
		return 0, m, false
	}
	wanted := "mean"
	if m.quantity <= nvml.ProcessMemory {
		wanted = "max"
	}
	if found[3] != wanted {
		m.rank++
	}
	if found[3] == "min" || found[3] == "last" {
		m.rank++
	}
	index, err := strconv.Atoi(found[1])
	return index, m, err == nil
}

// column is a column of a table.
type column struct {
	meaning
	at int // its index in a row
}

// group is the columns of one GPU. Only in a CSV of nvitop are there several.
type group struct {
	device     nvml.Device // fixed, for nvitop
	columns    []column    // of quantities, one each
	hasProcess bool
}

// layout says what the columns of a table mean.
type layout struct {
	format string
	width  int
	roles  map[role]int // the column of each role
	groups []group
}

func (l *layout) column(r role) (int, bool) {
	at, ok := l.roles[r]
	return at, ok
}

// identifies reports whether a column says which GPU a row belongs to.
func (l *layout) identifies() bool {
	for _, r := range []role{indexRole, uuidRole, busRole} {
		if _, ok := l.roles[r]; ok {
			return true
		}
	}
	return len(l.groups) > 1 || l.format == formatNvitop
}

// layoutOf returns the layout of a table with a header. It returns false if the cells are no header: two columns must
// be known, or one of memory.
func layoutOf(cells []string, known func(string) (meaning, bool)) (*layout, bool) {
	l := &layout{width: len(cells), roles: make(map[role]int), groups: []group{{device: nvml.Device{Index: -1}}}}
	ranks, best, found := make(map[role]int), make(map[nvml.Quantity]column), 0
	nvitop := make(map[int]map[nvml.Quantity]column)
	for i, cell := range cells {
		if index, m, ok := collectedMeaning(cell); ok {
			if nvitop[index] == nil {
				nvitop[index] = make(map[nvml.Quantity]column)
			}
			keepBest(nvitop[index], column{m, i})
			continue
		}
		if strings.HasSuffix(cell, "/timestamp") {
			cell = "timestamp"
		}
		m, ok := known(cell)
		if !ok {
			continue
		}
		found++
		if m.role == quantityRole {
			keepBest(best, column{m, i})
		} else if before, ok := ranks[m.role]; !ok || m.rank < before {
			ranks[m.role], l.roles[m.role] = m.rank, i
		}
	}
	if len(nvitop) > 0 {
		return l.asNvitop(nvitop), true
	}
	_, hasPID := l.roles[pidRole]
	l.groups[0].columns, l.groups[0].hasProcess = columnsOf(best, hasPID), hasPID
	memory := slices.ContainsFunc(l.groups[0].columns, func(c column) bool { return c.quantity <= nvml.ProcessMemory })
	if len(l.groups[0].columns) == 0 && !hasPID || found < 2 && !memory {
		return nil, false
	}
	l.format = formatOf(cells, hasPID)
	return l, true
}

func keepBest(best map[nvml.Quantity]column, c column) {
	if before, ok := best[c.quantity]; !ok || c.rank < before.rank {
		best[c.quantity] = c
	}
}

// columnsOf returns the columns in order. In a table of processes only their memory counts: the other columns are not the device's.
func columnsOf(best map[nvml.Quantity]column, processes bool) (columns []column) {
	for _, c := range best {
		switch {
		case !processes:
			columns = append(columns, c)
		case c.quantity == nvml.MemoryUsed:
			c.quantity = nvml.ProcessMemory
			columns = append(columns, c)
		}
	}
	slices.SortFunc(columns, func(x, y column) int { return int(x.quantity) - int(y.quantity) })
	return columns
}

func (l *layout) asNvitop(of map[int]map[nvml.Quantity]column) *layout {
	l.format, l.groups = formatNvitop, nil
	for index, best := range of {
		l.groups = append(l.groups, group{device: nvml.Device{Index: index}, columns: columnsOf(best, false)})
	}
	slices.SortFunc(l.groups, func(x, y group) int { return x.device.Index - y.device.Index })
	return l
}

// formatOf says which tool writes such a header.
func formatOf(cells []string, hasPID bool) string {
	has := func(names ...string) bool {
		return slices.ContainsFunc(cells, func(c string) bool {
			plain, _ := canonical(c)
			return slices.Contains(names, plain)
		})
	}
	switch {
	case has("vram.total.used.memory", "vram.total.memory", "gpu.use"):
		return formatROCm
	case has("used.vram", "vram.used", "gfx.activity", "hotspot.temperature"):
		return formatAMD
	case hasPID:
		return formatApps
	}
	return formatQuery
}
