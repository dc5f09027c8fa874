package estimating

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

const estimateSchema = "gpumemtrack.estimate/1"

// estimated is what --json prints.
type estimated struct {
	Schema         string      `json:"schema"`
	Mode           string      `json:"mode"`
	Peak           alloc.Bytes `json:"peak_bytes"`
	Upper          alloc.Bytes `json:"peak_upper_bytes"`
	Allocated      alloc.Bytes `json:"allocated_bytes"`
	AllocatedUpper alloc.Bytes `json:"allocated_upper_bytes"`
	Reserved       alloc.Bytes `json:"reserved_bytes"`
	ReservedUpper  alloc.Bytes `json:"reserved_upper_bytes"`
	Device         alloc.Bytes `json:"device_bytes"`
	DeviceUpper    alloc.Bytes `json:"device_upper_bytes"`
	Needs          alloc.Bytes `json:"needed_upper_bytes"`
	Host           alloc.Bytes `json:"host_bytes"`
	Budget         alloc.Bytes `json:"budget_bytes,omitempty"`
	Fits           *bool       `json:"fits,omitempty"`
	// Quantization is what --best-quantization chose.
	Quantization string           `json:"quantization,omitempty"`
	Batch        int              `json:"batch,omitempty"`          // found by --max-batch
	Replicas     int              `json:"replicas,omitempty"`       // found by --min-replicas
	GPULayers    int              `json:"gpu_layers,omitempty"`     // of llama.cpp, on the GPU
	Context      int              `json:"context_length,omitempty"` // tokens of each sequence: given with --serve, or found by --max-context-length
	Assumed      []string         `json:"assumed,omitempty"`        // the flags that say what was assumed
	Remedies     []remedy         `json:"would_fit,omitempty"`      // changes with which the model would fit
	Nearest      *remedy          `json:"nearest,omitempty"`        // if it never fits, the changes that need the least memory
	Measured     *measured        `json:"measured,omitempty"`       // a recorded run beside the estimate
	Report       *estimate.Report `json:"report"`

	options   estimateOptions
	notes     []string
	published string // element type of a known model's weights
}

// remedy is one change or several with which the model fits, or nearly does.
type remedy struct {
	Says    string      `json:"says"`
	Flags   []string    `json:"flags"`
	Needs   alloc.Bytes `json:"needed_upper_bytes"`
	Command string      `json:"command"`
}

func (o estimateOptions) mode() string {
	switch {
	case o.train:
		return "train"
	case o.serve:
		return "serve"
	}
	return "inference"
}
