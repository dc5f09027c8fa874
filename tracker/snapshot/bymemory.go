package snapshot

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// ByMemory is the live buffers in each kind of memory, by what was requested. All zero says
// that the source does not tell. Its JSON form is an object with the kinds that have buffers.
type ByMemory [alloc.ImportedMemory + 1]mem.Tally

// Host returns the buffers in the host's memory.
func (b *ByMemory) Host() (sum mem.Tally) {
	for m, t := range b {
		if alloc.Memory(m).OnHost() {
			sum = sum.Add(t)
		}
	}
	return sum
}

// MarshalJSON writes the kinds that have buffers.
func (b ByMemory) MarshalJSON() ([]byte, error) {
	named := make(map[string]mem.Tally)
	for m, t := range b {
		if !t.IsZero() {
			named[alloc.Memory(m).String()] = t
		}
	}
	return json.Marshal(named)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (b *ByMemory) UnmarshalJSON(text []byte) error {
	var named map[string]mem.Tally
	if err := json.Unmarshal(text, &named); err != nil {
		return err
	}
	*b = ByMemory{}
	for name, t := range named {
		var m alloc.Memory
		if err := m.UnmarshalText([]byte(name)); err != nil {
			return err
		}
		if t.Count < 0 || t.Bytes < 0 {
			return fmt.Errorf("%v memory: %d buffers, %d bytes", m, t.Count, int64(t.Bytes))
		}
		b[m] = t
	}
	return nil
}

// AppendMemory appends a line for each kind of memory that has live buffers, except plain device
// memory, which is what is left of Live. Each begins with the indent:
//
//	Managed memory:     96.0 MiB in 1 buffer, part of the device's
//	Pinned host memory: 8.0 MiB in 2 buffers, none of the device's
func (l *Levels) AppendMemory(b []byte, indent string) []byte {
	for _, m := range alloc.Memories() {
		live := l.Memory[m]
		if m == alloc.DeviceMemory || live.IsZero() {
			continue
		}
		b = append(b, indent...)
		from := len(b)
		b = text.Pad(append(append(b, memoryTitle(m)...), ':'), from, 20)
		plural := "s"
		if live.Count == 1 {
			plural = ""
		}
		part := "part of the device's"
		if m.OnHost() {
			part = "none of the device's"
		}
		b = fmt.Appendf(b, "%v in %d buffer%s, %s\n", live.Bytes, live.Count, plural, part)
	}
	return b
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
