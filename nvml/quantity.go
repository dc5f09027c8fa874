package nvml

import (
	"fmt"
	"math/bits"
	"strings"
)

// Quantity is something that a device can report.
type Quantity uint8

// The quantities. MemoryUsed, MemoryFree and MemoryTotal are the device's, all
// processes together; DriverReserved is what the driver and the firmware keep
// for themselves. ProcessMemory is of one process, or of one and its children.
const (
	MemoryUsed Quantity = iota
	MemoryFree
	MemoryTotal
	DriverReserved
	ProcessMemory
	Utilization
	Power
	Temperature
	FanSpeed
	ClockGraphics
	ClockMemory
	ClockSM
	ClockVideo
	numQuantities
)

// quantities describes them once for text, files and charts. The key carries
// the unit that values are kept in, unit is the one that gpulink's lines print.
var quantities = [numQuantities]struct {
	name, key, unit string
}{
	MemoryUsed:     {"memory used", "memory_used_bytes", "MB"},
	MemoryFree:     {"memory free", "memory_free_bytes", "MB"},
	MemoryTotal:    {"memory total", "memory_total_bytes", "MB"},
	DriverReserved: {"driver reserved", "driver_reserved_bytes", "MB"},
	ProcessMemory:  {"process memory", "process_memory_bytes", "MB"},
	Utilization:    {"utilization", "utilization_percent", "%"},
	Power:          {"power", "power_watts", "W"},
	Temperature:    {"temperature", "temperature_celsius", "°C"},
	FanSpeed:       {"fan speed", "fan_speed_percent", "%"},
	ClockGraphics:  {"graphics clock", "graphics_clock_megahertz", "MHz"},
	ClockMemory:    {"memory clock", "memory_clock_megahertz", "MHz"},
	ClockSM:        {"SM clock", "sm_clock_megahertz", "MHz"},
	ClockVideo:     {"video clock", "video_clock_megahertz", "MHz"},
}

// String returns the quantity's name: "memory used".
func (q Quantity) String() string {
	if q >= numQuantities {
		return fmt.Sprintf("Quantity(%d)", uint8(q))
	}
	return quantities[q].name
}

// Key returns the quantity's name in files, with the unit that the values are
// in: "memory_used_bytes", "power_watts".
func (q Quantity) Key() string { return quantities[q].key }

// Unit returns the unit that String of a Series prints: "MB" (10^6 bytes), "W".
func (q Quantity) Unit() string { return quantities[q].unit }

// IsMemory reports whether the quantity is an amount of memory, in bytes.
func (q Quantity) IsMemory() bool { return q <= ProcessMemory }

// MarshalText writes the quantity's key.
func (q Quantity) MarshalText() ([]byte, error) { return []byte(q.Key()), nil }

// UnmarshalText reads what MarshalText writes.
func (q *Quantity) UnmarshalText(text []byte) error {
	found, ok := quantityOfKey(string(text))
	if !ok {
		return fmt.Errorf("nvml: no quantity %q", text)
	}
	*q = found
	return nil
}

// Quantities is a set of quantities.
type Quantities uint32

// Clocks is the set of all clocks, and AllQuantities that of everything which
// a device itself can be asked for.
const (
	Clocks        = Quantities(1<<ClockGraphics | 1<<ClockMemory | 1<<ClockSM | 1<<ClockVideo)
	AllQuantities = Quantities(1<<numQuantities-1) &^ (1 << ProcessMemory)
	memoryQuants  = Quantities(1<<MemoryUsed | 1<<MemoryFree | 1<<MemoryTotal | 1<<DriverReserved)
)

// SetOf returns the set of the given quantities.
func SetOf(qs ...Quantity) Quantities {
	var s Quantities
	for _, q := range qs {
		s |= 1 << q
	}
	return s
}

// Has reports whether q is in the set.
func (s Quantities) Has(q Quantity) bool { return s&(1<<q) != 0 }

// List returns the set's quantities in their order.
func (s Quantities) List() []Quantity {
	list := make([]Quantity, 0, bits.OnesCount32(uint32(s)))
	for q := range numQuantities {
		if s.Has(q) {
			list = append(list, q)
		}
	}
	return list
}

// ParseQuantities reads a list of words, separated by commas: memory, utilization, power,
// temperature, fan, clocks, all. The error names the word that is not known.
func ParseQuantities(list string) (Quantities, error) {
	words := map[string]Quantities{
		"memory": SetOf(MemoryUsed), "utilization": SetOf(Utilization), "power": SetOf(Power),
		"temperature": SetOf(Temperature), "fan": SetOf(FanSpeed), "clocks": Clocks,
		"all": SetOf(MemoryUsed, Utilization, Power, Temperature, FanSpeed) | Clocks,
	}
	var set Quantities
	for word := range strings.SplitSeq(list, ",") {
		qs, ok := words[strings.TrimSpace(word)]
		if !ok {
			return 0, fmt.Errorf("nvml: no quantity %q: want memory, utilization, power, temperature, fan, clocks or all", word)
		}
		set |= qs
	}
	return set, nil
}

func quantityOfKey(key string) (Quantity, bool) {
	for q := range numQuantities {
		if quantities[q].key == key {
			return q, true
		}
	}
	return 0, false
}
