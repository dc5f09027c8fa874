package tracker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// The schema of a dump's JSON form, around those of its parts. The version rises when
// a reader of the one before would misread it.
const (
	DumpSchema  = "gpumemtrack.dump"
	DumpVersion = 1
)

// Dump is all that a tracker knew at a moment, as MemTracker.Dump writes it.
type Dump struct {
	Time     time.Time
	Reason   string // why it was written
	Process  Process
	Devices  []DeviceInfo // of all trackers of the process, the dump's first
	Snapshot *Snapshot    // with the cache's segments
	History  *History
	Marks    []*Mark // the latest, oldest first
	LeftOut  LeftOut
}

// Process is the program that wrote a dump, and how it was built.
type Process struct {
	PID      int               `json:"pid"`
	Go       string            `json:"go"`
	Path     string            `json:"path"` // of the main package
	Version  string            `json:"version"`
	Settings map[string]string `json:"settings,omitempty"` // of the build: GOOS, vcs.revision
	Deps     map[string]string `json:"deps,omitempty"`     // version by module
}

// DeviceInfo is the state of a device, as its driver says; -1 is unknown.
type DeviceInfo struct {
	Name     string      `json:"name"`
	Ordinal  int         `json:"ordinal"`
	Used     alloc.Bytes `json:"used_bytes"`
	Total    alloc.Bytes `json:"total_bytes"`
	Reserved alloc.Bytes `json:"reserved_bytes"` // by the tracker
}

type dumpHead struct {
	Schema  string       `json:"schema"`
	Version int          `json:"version"`
	Time    time.Time    `json:"time"`
	Reason  string       `json:"reason,omitempty"`
	Process Process      `json:"process"`
	Devices []DeviceInfo `json:"devices"`
	LeftOut LeftOut      `json:"left_out,omitzero"`
}

// Dump writes all that the tracker knows as one JSON object: a Snapshot, with
// the cache's segments, the History, the devices, and how the program was
// built. ReadDump reads it. The reason is for whoever finds it. A closed tracker
// knows nothing: the error is alloc.ErrClosed.
func (t *MemTracker) Dump(w io.Writer, reason string) error {
	d, err := t.newDump(reason, alloc.MaxBytes)
	if err != nil {
		return err
	}
	return d.write(w)
}

// newDump returns a dump that may be as large as the limit; what certainly does not
// fit is not even copied.
func (t *MemTracker) newDump(reason string, limit alloc.Bytes) (*Dump, error) {
	if t.closed.Load() {
		return nil, fmt.Errorf("write dump: tracker: %w", alloc.ErrClosed)
	}
	d := &Dump{Reason: reason, Process: thisProcess(), History: t.History(), Marks: t.Marks()}
	if t.levels().Live.Count > int64(limit/leastAllocationJSON) {
		d.Snapshot = t.LightSnapshot()
		d.LeftOut.ofLight(d.Snapshot)
	} else {
		d.Snapshot = t.Snapshot()
	}
	if t.closed.Load() {
		return nil, fmt.Errorf("write dump: tracker: %w", alloc.ErrClosed)
	}
	d.Time = d.Snapshot.Time
	for _, other := range append([]*MemTracker{t}, t.others()...) {
		levels := other.levels()
		d.Devices = append(d.Devices, DeviceInfo{
			Name: other.device.Name(), Ordinal: other.device.Ordinal(),
			Used: levels.DriverUsed, Total: levels.DriverTotal, Reserved: levels.Reserved,
		})
	}
	return d, nil
}

func thisProcess() Process {
	p := Process{PID: os.Getpid(), Settings: make(map[string]string), Deps: make(map[string]string)}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return p
	}
	p.Go, p.Path, p.Version = info.GoVersion, info.Path, info.Main.Version
	for _, s := range info.Settings {
		p.Settings[s.Key] = s.Value
	}
	for _, m := range info.Deps {
		p.Deps[m.Path] = m.Version
	}
	return p
}

func (d *Dump) write(w io.Writer) error {
	out := newTableWriter(w)
	d.writeTo(out)
	if err := out.flush(); err != nil {
		return fmt.Errorf("write dump: %w", err)
	}
	return nil
}

func (d *Dump) writeTo(out *tableWriter) {
	out.head(dumpHead{DumpSchema, DumpVersion, d.Time, d.Reason, d.Process, d.Devices, d.LeftOut})
	out.bytes([]byte(",\n\"snapshot\": "))
	d.Snapshot.writeTo(out)
	out.bytes([]byte(",\n\"history\": "))
	d.History.writeTo(out)
	table(out, "marks", d.Marks, asJSON(func(m *Mark) any { return m }))
	out.bytes([]byte("}\n"))
}

// ReadDump reads what MemTracker.Dump wrote. The error says what is wrong with
// the text: torn, of another version, or at odds with itself.
func ReadDump(r io.Reader) (*Dump, error) {
	var in struct {
		dumpHead
		Snapshot *Snapshot `json:"snapshot"`
		History  *History  `json:"history"`
		Marks    []*Mark   `json:"marks"`
	}
	if err := json.NewDecoder(r).Decode(&in); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			err = fmt.Errorf("the text ends before the dump does: %w", io.ErrUnexpectedEOF)
		}
		return nil, fmt.Errorf("read dump: %w", err)
	}
	if err := checkSchema(in.Schema, in.dumpHead.Version, DumpSchema, DumpVersion); err != nil {
		return nil, fmt.Errorf("read dump: %w", err)
	}
	if in.Snapshot == nil || in.History == nil {
		return nil, errors.New("read dump: it lacks its snapshot or its history")
	}
	if slices.Contains(in.Marks, nil) {
		return nil, errors.New("read dump: a mark is null")
	}
	return &Dump{in.Time, in.Reason, in.Process, in.Devices, in.Snapshot, in.History, in.Marks, in.LeftOut}, nil
}
