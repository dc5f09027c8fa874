package nvml

import (
	"encoding/json"
	"fmt"
	"math/bits"
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

// Unit returns the unit that String of a Series prints and charts draw: "MB" (10^6 bytes), "W".
func (q Quantity) Unit() string { return quantities[q].unit }

// isMemory reports whether the quantity is an amount of memory, in bytes.
func (q Quantity) isMemory() bool { return q <= ProcessMemory }

// MarshalText writes the quantity's key.
func (q Quantity) MarshalText() ([]byte, error) { return []byte(q.Key()), nil }

// quantityKeys is read as MarshalText writes each of them.
type quantityKeys []Quantity

// UnmarshalJSON refuses a key that is none.
func (qs *quantityKeys) UnmarshalJSON(text []byte) error {
	var keys []string
	if err := json.Unmarshal(text, &keys); err != nil {
		return err
	}
	*qs = nil
	for _, key := range keys {
		q, ok := quantityOfKey(key)
		if !ok {
			return fmt.Errorf("nvml: no quantity %q", key)
		}
		*qs = append(*qs, q)
	}
	return nil
}

// quantitySet is a set of quantities: a bit for each.
type quantitySet uint32

const (
	// allSet is everything that a device itself can be asked for.
	allSet       = quantitySet(1<<numQuantities-1) &^ (1 << ProcessMemory)
	memoryQuants = quantitySet(1<<MemoryUsed | 1<<MemoryFree | 1<<MemoryTotal | 1<<DriverReserved)
)

func setOf(qs ...Quantity) quantitySet {
	var s quantitySet
	for _, q := range qs {
		s |= 1 << q
	}
	return s
}

func (s quantitySet) has(q Quantity) bool { return s&(1<<q) != 0 }

// list returns the set's quantities in the order of the constants.
func (s quantitySet) list() []Quantity {
	list := make([]Quantity, 0, bits.OnesCount32(uint32(s)))
	for q := range numQuantities {
		if s.has(q) {
			list = append(list, q)
		}
	}
	return list
}

func quantityOfKey(key string) (Quantity, bool) {
	for q := range numQuantities {
		if quantities[q].key == key {
			return q, true
		}
	}
	return 0, false
}
