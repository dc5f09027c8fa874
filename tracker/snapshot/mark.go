package snapshot

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Mark is the result of one Track: the levels at that moment, and what changed since the
// previous mark.
type Mark struct {
	Seq      int // 1 for the tracker's first
	Time     time.Time
	CallSite mem.Frame // who called Track
	Delta    Delta
	Levels
}

// String says who called Track and what was live, and then what changed:
//
//	mark 3 at train.go:88 main.step: 41 buffers, 145.0 MiB live
//	+ | 1 * (64, 1000) float32 | 250.0 KiB | Activation | main.go:40 main.forward
func (m *Mark) String() string {
	text := fmt.Sprintf("mark %d at %v: %v live", m.Seq, m.CallSite, m.Live)
	if len(m.Delta) > 0 {
		text += "\n" + m.Delta.String()
	}
	return text
}

// MarshalJSON writes the mark as docs/dump.schema.json describes it.
func (m Mark) MarshalJSON() ([]byte, error) {
	return json.Marshal(markJSON{m.Seq, m.Time, m.CallSite, m.Delta, m.Levels.json()})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (m *Mark) UnmarshalJSON(text []byte) error {
	var in markJSON
	if err := jsonstream.Unmarshal(text, &in); err != nil {
		return err
	}
	levels, err := in.levels()
	if err == nil {
		*m = Mark{in.Seq, in.Time, in.Site, in.Delta, levels}
	}
	return err
}

type markJSON struct {
	Seq   int       `json:"seq"`
	Time  time.Time `json:"time"`
	Site  mem.Frame `json:"call_site"`
	Delta Delta     `json:"delta"`
	levelsJSON
}

// Levels are the amounts of memory at one instant, in bytes, in the terms of package alloc. Fields
// without "Host" in their name count only device memory.
type Levels struct {
	// Live is the live buffers, counted in requested bytes: "Total Tensor Used Memory".
	Live mem.Tally `json:"live"`
	// Allocated is the same after rounding.
	Allocated alloc.Bytes `json:"allocated_bytes"`
	// Reserved is what the tracker's device holds from the driver: the cache's
	// segments, or without a cache the allocated bytes.
	Reserved alloc.Bytes `json:"reserved_bytes"`
	// Registered is the part of Allocated that other code allocated. With Reserved it
	// is "Total Allocated Memory".
	Registered alloc.Bytes `json:"registered_bytes"`
	// Pending is the part of Reserved that was freed while other streams may still use it.
	Pending alloc.Bytes `json:"pending_bytes,omitzero"`
	// Memory splits the live buffers by type of memory, in requested bytes: those of Live, and those in host memory. It
	// has the types that have buffers; none if the source does not tell. Do not write to it.
	Memory map[alloc.Memory]mem.Tally `json:"memory,omitempty"`
	// HostReserved is the host memory that the tracker's device has reserved, if it gives host
	// memory, plus the registered host memory.
	HostReserved alloc.Bytes `json:"host_reserved_bytes,omitzero"`
	// DriverUsed is the memory in use by all processes, as the driver says. DriverUsed and
	// DriverTotal are -1 if the driver did not say.
	DriverUsed  alloc.Bytes `json:"driver_used_bytes"`
	DriverTotal alloc.Bytes `json:"driver_total_bytes"`
}

// levelsJSON is the JSON form of Levels.
type levelsJSON struct {
	plainLevels
	DriverUsed  jsonstream.Amount `json:"driver_used_bytes"`
	DriverTotal jsonstream.Amount `json:"driver_total_bytes"`
}

type plainLevels Levels

func (l Levels) json() levelsJSON {
	return levelsJSON{plainLevels(l), jsonstream.Amount(l.DriverUsed), jsonstream.Amount(l.DriverTotal)}
}

func (l levelsJSON) levels() (Levels, error) {
	out := Levels(l.plainLevels)
	out.DriverUsed, out.DriverTotal = alloc.Bytes(l.DriverUsed), alloc.Bytes(l.DriverTotal)
	for m, t := range out.Memory {
		if t.Count < 0 || t.Bytes < 0 {
			return out, fmt.Errorf("%v memory: %d buffers, %d bytes", m, t.Count, int64(t.Bytes))
		}
	}
	return out, nil
}

// MarshalJSON writes null for what is unknown.
func (l Levels) MarshalJSON() ([]byte, error) { return json.Marshal(l.json()) }

// UnmarshalJSON reads what MarshalJSON wrote.
func (l *Levels) UnmarshalJSON(text []byte) error {
	var in levelsJSON
	if err := jsonstream.Unmarshal(text, &in); err != nil {
		return err
	}
	levels, err := in.levels()
	if err == nil {
		*l = levels
	}
	return err
}

// Untracked returns the device memory in use that is not tracked: the driver's context, libraries,
// other processes. It is -1, unknown, if the driver did not report the used memory, or reported
// less than is tracked. It is also unknown while there is managed memory: the driver counts only
// the pages on the device, and does not say how many these are.
func (l Levels) Untracked() alloc.Bytes {
	if l.DriverUsed < 0 || l.Memory[alloc.ManagedMemory].Bytes > 0 {
		return -1
	}
	return max(-1, l.DriverUsed-l.Reserved-l.Registered)
}

// Host returns the live buffers in the host's memory.
func (l Levels) Host() (sum mem.Tally) {
	for m, t := range l.Memory {
		if m.OnHost() {
			sum = sum.Add(t)
		}
	}
	return sum
}
