// Package enginelog reads what programs that serve or train models log about their memory: vLLM, SGLang, llama.cpp and
// its servers, ollama, TensorRT-LLM, DeepSpeed, torchtitan and torchtune.
//
// A log is read line by line, among whatever else it has. Each engine has a file with a table of patterns; a pattern
// cites where the engine prints the line. The values of one start of an engine make a [Report]. What a log does not say
// stays unknown: a nil pointer, or a row that is absent.
package enginelog

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

// ErrNoEngine is returned for a text in which no known engine says anything about its memory.
var ErrNoEngine = errors.New("no engine says in it what takes its memory")

// Engine is the program that wrote a log.
type Engine string

// The engines whose logs are read.
const (
	VLLM        Engine = "vLLM"
	SGLang      Engine = "SGLang"
	LlamaCpp    Engine = "llama.cpp"
	Ollama      Engine = "ollama"
	TensorRTLLM Engine = "TensorRT-LLM"
	DeepSpeed   Engine = "DeepSpeed"
	TorchTitan  Engine = "torchtitan"
	TorchTune   Engine = "torchtune"
)

// Part says what memory is for.
type Part string

// The parts of an engine's memory.
const (
	Weights     Part = "weights"
	Activations Part = "activations" // the peak of the forward pass that an engine runs to measure itself
	Outside     Part = "outside PyTorch"
	Graphs      Part = "CUDA graphs"
	Cache       Part = "KV cache"
	States      Part = "recurrent states"
	Compute     Part = "compute buffers"
	Output      Part = "output buffer"
	Adapters    Part = "LoRA"
	Projector   Part = "projector" // an image or audio encoder
	Unaccounted Part = "unaccounted"
)

// Parts are all parts, in the order of a table.
var Parts = []Part{Weights, Activations, Outside, Graphs, Cache, States, Compute, Output, Adapters, Projector, Unaccounted}

// Report is what one start of an engine says.
type Report struct {
	Engine  Engine `json:"engine"`
	Version string `json:"version,omitempty"` // "" is unknown
	Model   string `json:"model,omitempty"`   // as the log names it; "" is unknown
	Line    int    `json:"line"`              // of the log, where the first value stands; from 1

	Devices  []*Device   `json:"devices"`
	Omitted  int         `json:"omitted_devices,omitempty"` // devices beyond the first MaxDevices
	Capacity Capacity    `json:"capacity"`
	Projects *Projection `json:"projected"`
	Failure  *Failure    `json:"failure"`
	Moments  []Moment    `json:"moments,omitempty"` // measurements at named moments of a training run
	Plans    []Plan      `json:"plans,omitempty"`   // what DeepSpeed estimates for each of its options
	Notes    []string    `json:"notes,omitempty"`   // what follows from several lines, in sentences

	full *int64 // tokens of the layers that see the whole context, where others see a window
}

// Device is a device, or a rank that has one, as the log names it: "CUDA0", "TP1", or "" if it names none.
type Device struct {
	Name   string       `json:"name"`
	Total  *alloc.Bytes `json:"total_bytes"` // of the device
	Free   *alloc.Bytes `json:"free_bytes"`  // before the engine loaded its model
	Limit  *alloc.Bytes `json:"limit_bytes"` // what the engine may take
	Left   *alloc.Bytes `json:"left_bytes"`  // free when the engine was ready
	Rows   []Row        `json:"parts"`
	loaded *alloc.Bytes // free behind the weights
}

// Row is the memory of one part on a device.
type Row struct {
	Of      Part        `json:"of"`
	Bytes   alloc.Bytes `json:"bytes"`             // may be negative: a KV cache for which memory lacks
	Planned bool        `json:"planned,omitempty"` // the engine estimated it, and did not measure it
}

// Capacity says what fits into the KV cache.
type Capacity struct {
	Tokens      *int64   `json:"tokens"`           // tokens of keys and values
	Blocks      *int64   `json:"blocks"`           // where the engine counts in blocks
	Context     *int64   `json:"context_tokens"`   // the most tokens of one request
	Requests    *float64 `json:"requests"`         // of that many tokens that fit at once
	MaxRequests *int64   `json:"max_requests"`     // at once, by the scheduler's limit
	Fraction    *float64 `json:"fraction"`         // of the device that the engine was told to take
	Layers      *int64   `json:"layers"`           // of the model
	OnDevice    *int64   `json:"layers_on_device"` // layers on devices
	Parallel    *int64   `json:"tensor_parallel"`  // devices that share each layer
}

// Projection is what llama.cpp expected to take before it loaded a model, on all devices.
type Projection struct {
	Needs alloc.Bytes `json:"needs_bytes"`
	Free  alloc.Bytes `json:"free_bytes"`
}

// Failure is the reason why an engine did not start, or could not go on.
type Failure struct {
	Line   int          `json:"line"`
	Reason string       `json:"reason"`           // one of the reasons below
	Of     Part         `json:"of,omitempty"`     // what the memory was for; "" is unknown
	Device string       `json:"device,omitempty"` // "" is unknown
	Needs  *alloc.Bytes `json:"needs_bytes"`      // what was asked for
	Has    *alloc.Bytes `json:"has_bytes"`        // what there was for it
	Tokens *int64       `json:"tokens"`           // of the request or context that does not fit
	Fits   *int64       `json:"fits_tokens"`      // tokens that would
}

// The reasons of a Failure.
const (
	NoMemoryForCache = "no memory is left for the KV cache"
	RequestTooLong   = "one request of the whole context length does not fit into the KV cache"
	DeviceInUse      = "less memory is free than the engine is told to take"
	MemoryReleased   = "another process released memory while the engine measured its own"
	AllocationFailed = "the device refused an allocation"
	BufferTooLarge   = "one buffer is larger than the driver allows"
)

// Moment is a measurement of PyTorch's allocator at a moment of a run. Nil values are unknown.
type Moment struct {
	Label         string       `json:"label"` // what the program printed with it; "" if nothing
	Device        string       `json:"device,omitempty"`
	Allocated     *alloc.Bytes `json:"allocated_bytes"`
	PeakAllocated *alloc.Bytes `json:"peak_allocated_bytes"`
	Reserved      *alloc.Bytes `json:"reserved_bytes"`
	PeakReserved  *alloc.Bytes `json:"peak_reserved_bytes"`
	PeakActive    *alloc.Bytes `json:"peak_active_bytes"`
}

// Plan is an estimate of DeepSpeed.
type Plan struct {
	Options   string      `json:"options"`
	CPU       alloc.Bytes `json:"cpu_bytes"`       // for each node's CPU
	GPU       alloc.Bytes `json:"gpu_bytes"`       // for each GPU
	ModelSize string      `json:"model,omitempty"` // "2851M total params"
}

// The most that is kept of a log; a real one stays far below.
const (
	MaxDevices = 1024 // of a report
	maxReports = 256
	maxMoments = 1000
	maxPlans   = 100
	maxNotes   = 20
)

// Find returns a device by its name; nil if the log has none.
func (r *Report) Find(name string) *Device {
	for _, d := range r.Devices {
		if d.Name == name {
			return d
		}
	}
	return nil
}

// Get returns the bytes of a part, and whether the log has them.
func (d *Device) Get(of Part) (alloc.Bytes, bool) {
	for _, row := range d.Rows {
		if row.Of == of {
			return row.Bytes, true
		}
	}
	return 0, false
}

// Sum returns the bytes of all parts.
func (d *Device) Sum() (sum alloc.Bytes) {
	for _, row := range d.Rows {
		sum += row.Bytes
	}
	return sum
}

// OnHost reports whether the memory is the machine's, not a GPU's.
func (d *Device) OnHost() bool { return onHost(d.Name) }

// Parts returns the parts that any device has, in the order of a table.
func (r *Report) Parts() []Part {
	return slices.DeleteFunc(slices.Clone(Parts), func(of Part) bool {
		return !slices.ContainsFunc(r.Devices, func(d *Device) bool { _, ok := d.Get(of); return ok })
	})
}

// set sets the bytes of a part. add adds to them, if they are of the same sort.
func (d *Device) set(of Part, n alloc.Bytes, planned bool) {
	for i := range d.Rows {
		if row := &d.Rows[i]; row.Of == of {
			if !planned || row.Planned { // a measurement stands
				row.Bytes, row.Planned = n, planned
			}
			return
		}
	}
	d.Rows = append(d.Rows, Row{of, n, planned})
}

func (d *Device) add(of Part, n alloc.Bytes) {
	for i := range d.Rows {
		if row := &d.Rows[i]; row.Of == of {
			if row.Planned {
				row.Bytes, row.Planned = 0, false
			}
			row.Bytes += n
			return
		}
	}
	d.Rows = append(d.Rows, Row{of, n, false})
}

// known reports whether anything is known of the device.
func (d *Device) known() bool {
	return len(d.Rows) > 0 || d.Total != nil || d.Free != nil || d.Limit != nil || d.Left != nil
}

func (r *Report) empty() bool {
	return !slices.ContainsFunc(r.Devices, (*Device).known) && r.Capacity == Capacity{} && r.Projects == nil && r.Failure == nil && len(r.Moments) == 0 && len(r.Plans) == 0
}

// OnlyFailed reports whether all that a log says is an error.
func (r *Report) OnlyFailed() bool {
	rest := *r
	rest.Failure = nil
	return rest.empty()
}

func (r *Report) note(format string, values ...any) {
	if n := fmt.Sprintf(format, values...); len(r.Notes) < maxNotes && !slices.Contains(r.Notes, n) {
		r.Notes = append(r.Notes, n)
	}
}

// ready reports whether an engine has said how much its cache holds.
func (r *Report) ready() bool {
	return r.Capacity.Tokens != nil || r.Capacity.Requests != nil || r.Capacity.Blocks != nil
}

func has(d *Device, of Part) bool { _, ok := d.Get(of); return ok }

func (d *Device) value(of Part) *alloc.Bytes {
	if n, ok := d.Get(of); ok {
		return &n
	}
	return nil
}

// device returns a device of the report; a spare one if there are too many.
func (r *Report) device(name string) *Device {
	name = bounded.Name(name)
	if d := r.Find(name); d != nil {
		return d
	}
	d := &Device{Name: name}
	if len(r.Devices) == MaxDevices {
		r.Omitted++
		return d
	}
	r.Devices = append(r.Devices, d)
	return d
}

func (d *Device) put(of Part, n *alloc.Bytes) {
	if n != nil {
		d.set(of, *n, false)
	}
}

func (d *Device) plan(of Part, n *alloc.Bytes) {
	if n != nil {
		d.set(of, *n, true)
	}
}

func (d *Device) more(of Part, n *alloc.Bytes) {
	if n != nil {
		if have, _ := d.Get(of); have < maxBytes {
			d.add(of, *n)
		}
	}
}
