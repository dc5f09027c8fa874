package tables

import (
	"fmt"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// ByMemory counts buffers by their type of memory.
type ByMemory [alloc.ImportedMemory + 1]mem.Tally

// Map returns the types that have buffers; nil if none has.
func (b *ByMemory) Map() (types map[alloc.Memory]mem.Tally) {
	for m, t := range b {
		if t == (mem.Tally{}) {
			continue
		}
		if types == nil {
			types = make(map[alloc.Memory]mem.Tally)
		}
		types[alloc.Memory(m)] = t
	}
	return types
}

// MemoryLines returns a line for each type of memory that has live buffers, except plain device memory:
//
//	Managed memory:     96.0 MiB in 1 buffer, part of the device's
//	Pinned host memory: 8.0 MiB in 2 buffers, none of the device's
func MemoryLines(live map[alloc.Memory]mem.Tally) (lines []string) {
	for _, m := range alloc.Memories() {
		t := live[m]
		if m == alloc.DeviceMemory || t.IsZero() {
			continue
		}
		plural := "s"
		if t.Count == 1 {
			plural = ""
		}
		part := "part of the device's"
		if m.OnHost() {
			part = "none of the device's"
		}
		lines = append(lines, fmt.Sprintf("%-20s%v in %d buffer%s, %s", memoryTitle(m)+":", t.Bytes, t.Count, plural, part))
	}
	return lines
}

// memoryTitle returns the words of a report: "Pinned host memory".
func memoryTitle(m alloc.Memory) string {
	name := m.String()
	name = strings.ToUpper(name[:1]) + name[1:]
	if m.OnHost() {
		name += " host"
	}
	return name + " memory"
}
