package recordings

import (
	"cmp"
	"compress/gzip"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/outside"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Recording is a memory snapshot of PyTorch: what its allocator did, and its state at the end.
type Recording struct {
	Conf    string // PYTORCH_CUDA_ALLOC_CONF
	Devices []Device
}

// Device is the part of one device.
type Device struct {
	Segments []Segment // at the end, by address
	Events   []Event   // before it, oldest first
}

// Event is one of a device's trace.
type Event struct {
	Action string // "alloc", "free_completed", "segment_alloc" and so on
	Ptr    alloc.Ptr
	Size   alloc.Bytes // requested, or of the segment
	Stream int64
}

// Segment is one allocation from the driver.
type Segment struct {
	Ptr    alloc.Ptr
	Size   alloc.Bytes
	Small  bool
	Stream int64
	Pool   [2]int64 // (0, 0) unless it is of a private pool
	Blocks []Block  // by address
}

// Block is a piece of a segment.
type Block struct {
	Ptr       alloc.Ptr
	Size      alloc.Bytes
	Requested alloc.Bytes // 0 unless it is allocated
	Allocated bool        // or pending
	Pending   bool        // freed, but other streams may still use it
}

func (b Block) end() alloc.Ptr { return b.Ptr + alloc.Ptr(b.Size) }

// Dir returns the folder of the recordings, and skips the test where there is none.
func Dir(t testing.TB) string {
	t.Helper()
	return outside.Folder(t, "recordings")
}

// Read reads a gzipped pickle.
func Read(path string) (*Recording, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		return nil, err
	}
	value, err := unpickle(unzipped)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	top, ok := value.(dict)
	if !ok {
		return nil, fmt.Errorf("read %s: no dict with segments", path)
	}
	return decode(top), nil
}

func decode(top dict) *Recording {
	r := new(Recording)
	if settings, ok := top["allocator_settings"].(dict); ok {
		r.Conf, _ = settings["PYTORCH_CUDA_ALLOC_CONF"].(string)
	}
	for _, trace := range items(top["device_traces"]) {
		var d Device
		for _, e := range items(trace) {
			d.Events = append(d.Events, newEvent(e.(dict)))
		}
		r.Devices = append(r.Devices, d)
	}
	for _, v := range items(top["segments"]) {
		s := v.(dict)
		d := &r.Devices[number(s["device"])]
		d.Segments = append(d.Segments, segment(s))
	}
	for _, d := range r.Devices {
		slices.SortFunc(d.Segments, func(a, b Segment) int { return cmp.Compare(a.Ptr, b.Ptr) })
	}
	return r
}

func newEvent(e dict) Event {
	action, _ := e["action"].(string)
	return Event{
		Action: action,
		Ptr:    alloc.Ptr(number(e["addr"])),
		Size:   alloc.Bytes(number(e["size"])),
		Stream: number(e["stream"]),
	}
}

func segment(s dict) Segment {
	out := Segment{
		Ptr:    alloc.Ptr(number(s["address"])),
		Size:   alloc.Bytes(number(s["total_size"])),
		Small:  s["segment_type"] == "small",
		Stream: number(s["stream"]),
	}
	if id := items(s["segment_pool_id"]); len(id) == 2 {
		out.Pool = [2]int64{number(id[0]), number(id[1])}
	}
	at := out.Ptr // the oldest files give blocks no address
	for _, v := range items(s["blocks"]) {
		b := v.(dict)
		block := Block{Ptr: at, Size: alloc.Bytes(number(b["size"])), Allocated: b["state"] != "inactive"}
		block.Pending = b["state"] == "active_pending_free"
		if block.Allocated {
			block.Requested = alloc.Bytes(number(b["requested_size"]))
		}
		out.Blocks = append(out.Blocks, block)
		at += alloc.Ptr(block.Size)
	}
	return out
}

func items(v any) []any {
	if l, ok := v.(*list); ok {
		return l.items
	}
	return nil
}

func number(v any) int64 {
	n, _ := v.(int64)
	return n
}
