// Package kineto reads the memory that PyTorch's profiler records: traces of Kineto with [memory]
// events, as histories, and the files of export_memory_timeline, as sums by category.
//
//	with torch.profiler.profile(profile_memory=True, with_stack=True) as prof: ...
//	prof.export_chrome_trace("run.pt.trace.json")
//
// # Traces
//
// torch.profiler writes an instant event named [memory] for each allocation and free, since 1.9
// (2021), in libkineto's output_json.cpp and torch/csrc/profiler/kineto_shim.cpp:
//
//	{"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 100, "args": {"Total Reserved": 2097152,
//	 "Total Allocated": 512, "Bytes": 512, "Addr": 139832, "Device Id": 0, "Device Type": 1}}
//
// Bytes is negative for a free. Ts is in microseconds, since baseTimeNanoseconds if the trace has it
// (2.3 and later). "Device Type" is PyTorch's number: 0 is the CPU, 1 is CUDA, and others are other
// accelerators. Each device becomes a dump, the leading one that with the most memory; the CPU's memory
// is read only if there is no other device. "Total Reserved" at the last event is the memory reserved.
//
// # Call stacks
//
// An allocation is made inside of the operators and, with with_stack=True, the Python functions
// around it on its thread: events of category cpu_op and python_function that begin before it and end
// after it. They are the call stack, innermost first. The line in "train.py(12): forward" is where
// the function begins; of those that were running when the profiler started, it is where they were. A
// trace without such events has no lines.
//
// # Memory timelines
//
// Profiler.export_memory_timeline (torch/profiler/_memory_profiler.py, 2.1 and later; deprecated in
// 2.9) writes for ".json" [times, sizes], where sizes has for each time one number of bytes for each
// category and a leading 0, and for ".raw.json.gz" a list of [time, action, bytes, category] for one
// device. Both become a usage by category: what is live at the end, and at the peak. Neither has
// addresses, so there are no single buffers. Its ".html" holds a picture, and no numbers.
package kineto

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/eventlog"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// ErrNoMemory is the error of a trace without memory events.
var ErrNoMemory = errors.New("the trace has no [memory] events: record it with torch.profiler.profile(profile_memory=True)")

// Read reads a trace, packed by gzip or not. It returns the dump of the leading device, with the dumps
// of the others as its Others, and the usage of all. The memory that it takes grows with the file, up
// to 1 GiB. The error is ErrNoMemory, or says where the file is damaged.
func Read(r io.Reader) (*snapshot.Dump, *export.Usage, error) {
	d, usage, err := read(r)
	if err != nil {
		return nil, nil, fmt.Errorf("read trace: %w", err)
	}
	return d, usage, nil
}

func read(r io.Reader) (*snapshot.Dump, *export.Usage, error) {
	in, err := jsonstream.NewReader(r)
	if err != nil {
		return nil, nil, err
	}
	t := &trace{
		use: in.Use, calls: callsIn{names: make(tables.Numbers[string]), threads: make(map[thread][]call)},
		properties: make(map[int64]properties),
	}
	if err := t.read(in); err != nil {
		return nil, nil, bounded.Torn(err)
	}
	if len(t.memory) == 0 {
		return nil, nil, ErrNoMemory
	}
	return t.dumps()
}

// trace is what is kept of a trace.
type trace struct {
	use        func(bytes int64) error
	base       int64 // nanoseconds since 1970 that times count from
	properties map[int64]properties
	calls      callsIn
	memory     []memoryEvent
}

// properties are what a trace says of a GPU.
type properties struct {
	ID    int64  `json:"id"`
	Name  string `json:"name"`
	Total int64  `json:"totalGlobalMem"`
}

// thread is a thread, as the trace numbers it.
type thread struct{ pid, tid string }

// device is a device, as PyTorch numbers it.
type device struct{ kind, id int64 }

// memoryEvent is an allocation, or a free of negative bytes.
type memoryEvent struct {
	at       int64 // nanoseconds
	thread   thread
	device   device
	addr     uint64
	bytes    int64
	reserved int64 // in total; -1 if it is not known
}

// memoryBytes is what a memory event takes.
const memoryBytes = 128

// maxSize is more than any device has, and so little that all sizes of a trace can be added up.
const maxSize = 1 << 42

func (t *trace) read(in *jsonstream.Reader) error {
	_, err := in.Members(func(key string) error {
		switch key {
		case "traceEvents":
			return in.Elements(func() error {
				text, err := in.Raw()
				if err != nil {
					return err
				}
				return t.event(text)
			})
		case "baseTimeNanoseconds":
			text, err := in.Raw()
			t.base, _ = strconv.ParseInt(string(text), 10, 64)
			return err
		case "deviceProperties":
			text, err := in.Raw()
			if err != nil {
				return err
			}
			var list []properties
			_ = json.Unmarshal(text, &list) // without it the devices have no names
			for _, p := range list[:min(len(list), maxDevices)] {
				t.properties[p.ID] = p
			}
			return nil
		}
		_, err := in.Raw()
		return err
	})
	return err
}

// maxDevices bounds the devices of a trace.
const maxDevices = 256

// The kinds of events that are read, as they stand in the text of one.
var (
	memoryMark    = []byte(`"[memory]"`)
	functionMarks = [][]byte{[]byte(`"python_function"`), []byte(`"cpu_op"`)}
)

// event reads an event. Most are neither of memory nor calls.
func (t *trace) event(text []byte) error {
	isMemory := bytes.Contains(text, memoryMark)
	if !isMemory && !slices.ContainsFunc(functionMarks, func(m []byte) bool { return bytes.Contains(text, m) }) {
		return nil
	}
	var e struct {
		Phase    string          `json:"ph"`
		Category string          `json:"cat"`
		Name     string          `json:"name"`
		PID      json.RawMessage `json:"pid"`
		TID      json.RawMessage `json:"tid"`
		TS       json.RawMessage `json:"ts"`
		Dur      json.RawMessage `json:"dur"`
		Args     json.RawMessage `json:"args"`
	}
	if json.Unmarshal(text, &e) != nil {
		return nil //nolint:nilerr // it is not of the profiler
	}
	at, ok := nanoseconds(string(e.TS))
	on := thread{string(e.PID), string(e.TID)}
	switch {
	case !ok || len(on.pid)+len(on.tid) > bounded.MaxName:
		return nil
	case isMemory && e.Name == "[memory]":
		return t.memoryEvent(at, on, e.Args)
	case e.Phase != "X" || e.Category != "python_function" && e.Category != "cpu_op":
		return nil
	}
	dur, ok := nanoseconds(string(e.Dur))
	if !ok {
		return nil
	}
	return t.calls.add(on, call{from: at, to: at + dur}, e.Name, t.use)
}

func (t *trace) memoryEvent(at int64, on thread, args []byte) error {
	var a struct {
		Reserved *int64      `json:"Total Reserved"`
		Bytes    int64       `json:"Bytes"`
		Addr     json.Number `json:"Addr"`
		ID       int64       `json:"Device Id"`
		Type     int64       `json:"Device Type"`
	}
	if json.Unmarshal(args, &a) != nil || a.Bytes == 0 || a.Bytes > maxSize || a.Bytes < -maxSize {
		return nil //nolint:nilerr // as an event of no allocation
	}
	addr, err := strconv.ParseUint(strings.TrimPrefix(a.Addr.String(), "-"), 10, 64)
	if err != nil {
		return nil //nolint:nilerr // as an event of no allocation
	}
	m := memoryEvent{at: at, thread: on, device: device{a.Type, a.ID}, addr: addr, bytes: a.Bytes, reserved: -1}
	if a.Reserved != nil && *a.Reserved >= 0 && *a.Reserved <= maxSize {
		m.reserved = *a.Reserved
	}
	t.memory = append(t.memory, m)
	return t.use(memoryBytes + int64(len(on.pid)+len(on.tid)))
}

// nanoseconds reads a number of microseconds with a fraction. It is exact, which a float64 is not for times since 1970.
func nanoseconds(text string) (int64, bool) {
	const most = 1 << 53
	text = strings.Trim(text, `"`)
	whole, fraction, _ := strings.Cut(text, ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, false
	}
	part, err := strconv.Atoi((fraction + "000")[:3])
	return n*1000 + int64(part), err == nil && part >= 0
}

// dumps makes a dump of each device.
func (t *trace) dumps() (*snapshot.Dump, *export.Usage, error) {
	slices.SortStableFunc(t.memory, func(x, y memoryEvent) int { return cmp.Compare(x.at, y.at) })
	stacks := t.calls.stacks(t.use)
	start := time.Unix(0, t.base+t.memory[0].at).UTC()
	builders, reserved := make(map[device]*eventlog.Builder), make(map[device]alloc.Bytes)
	for _, m := range t.memory {
		b := builders[m.device]
		if b == nil {
			if len(builders) == maxDevices {
				return nil, nil, fmt.Errorf("%w: the trace has more than %d devices", bounded.ErrTooLarge, maxDevices)
			}
			b = eventlog.New(eventlog.Config{Device: t.nameOf(m.device), Ordinal: int(min(max(m.device.id, 0), maxOrdinal)), Start: start, Stacks: &stacks.table, Memory: alloc.UnknownMemory, Use: t.use})
			builders[m.device] = b
		}
		reserved[m.device] = alloc.Bytes(m.reserved)
		stack, err := stacks.at(m.thread, m.at)
		if err != nil {
			return nil, nil, err
		}
		e := eventlog.Event{Since: time.Duration(m.at - t.memory[0].at), Ptr: alloc.Ptr(m.addr), Size: alloc.Bytes(max(m.bytes, -m.bytes)), Stack: stack}
		if m.bytes > 0 {
			err = b.Alloc(e)
		} else {
			err = b.Free(e)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	var dumps []*snapshot.Dump
	for of, b := range builders {
		if of.kind == cpu && len(builders) > 1 {
			continue
		}
		d, err := b.Dump()
		if err != nil {
			return nil, nil, err
		}
		d.Snapshot.Reserved = max(d.Snapshot.Reserved, reserved[of])
		if of.kind != cpu {
			d.Snapshot.Settings = map[string]string{walk.AllocatorSetting: walk.PyTorchAllocator}
		}
		if p, ok := t.properties[of.id]; ok && of.kind != cpu && p.Total > 0 {
			d.Snapshot.DriverTotal = alloc.Bytes(p.Total)
		}
		d.Devices[0].Levels.Reserved, d.Devices[0].Levels.DriverTotal = d.Snapshot.Reserved, d.Snapshot.DriverTotal
		dumps = append(dumps, d)
	}
	slices.SortFunc(dumps, func(x, y *snapshot.Dump) int {
		return cmp.Or(cmp.Compare(y.Snapshot.Peak.Bytes, x.Snapshot.Peak.Bytes), cmp.Compare(x.Snapshot.Ordinal, y.Snapshot.Ordinal), strings.Compare(x.Snapshot.Device, y.Snapshot.Device))
	})
	leading := dumps[0]
	leading.Others = dumps[1:]
	return leading, export.FromDump(leading), nil
}

// maxOrdinal is the largest number of a device that a snapshot can have.
const maxOrdinal = 1<<16 - 1

// The devices that PyTorch's profiler names, as c10/core/DeviceType.h numbers them.
const (
	cpu  = 0
	cuda = 1
	hip  = 6
)

var deviceNames = map[int64]string{cpu: "cpu", cuda: "cuda", hip: "hip", 9: "xla", 12: "xpu", 13: "mps", 15: "hpu", 19: "mtia", 20: "privateuseone"}

func (t *trace) nameOf(d device) string {
	if p, ok := t.properties[d.id]; ok && p.Name != "" && (d.kind == cuda || d.kind == hip) {
		return bounded.Name(p.Name)
	}
	if name, ok := deviceNames[d.kind]; ok {
		return name
	}
	return "device type " + strconv.FormatInt(d.kind, 10)
}
