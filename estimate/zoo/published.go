package zoo

import (
	"encoding/json"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/quantconfig"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Published says how the weights of a model are published.
type Published struct {
	// Types are those of the weights, such as "bfloat16", or "MXFP4 experts, bfloat16 the rest".
	Types string
	// Quantized is whether some are packed in fewer bits than DType has.
	Quantized bool
	// Bytes is the memory of the weights, without buffers.
	Bytes alloc.Bytes
	// Option sets the DType, and counts packed weights so for inference. A later Precision or Weights asks for another type.
	Option estimate.Option
}

// Published returns how the weights are published.
func (m Model) Published() Published {
	p := Published{Types: m.DType.String(), Bytes: alloc.Bytes(m.Params * int64(m.DType.Bits()) / 8), Option: estimate.Precision(m.DType)}
	q := m.quantization()
	if q == nil || q.Unread != "" {
		return p
	}
	params, err := tape.Parameters(layer.From(m.Layers))
	if err != nil {
		return p // the caller's own layers
	}
	sizes := q.Sizes(params, m.DType)
	packed := make(map[string]alloc.Bytes, len(sizes))
	for i := range params {
		path := params[i].Path + "." + params[i].Name
		if s, ok := sizes[path]; ok {
			packed[path] = s.Bytes
			p.Bytes += s.Bytes - alloc.Bytes(params[i].Elements*int64(m.DType.Bits())/8)
		}
	}
	p.Types, p.Quantized = q.Describe(params, m.DType), true
	p.Option = setting.Func(func(c *setting.Config) {
		estimate.Precision(m.DType).Apply(c)
		c.Packed = packed
	})
	return p
}

// quantization returns the quantization_config of a model's config.json, or nil.
func (m Model) quantization() *quantconfig.Config {
	var of struct {
		Q json.RawMessage `json:"quantization_config"`
	}
	if m.Config == nil || json.Unmarshal(m.Config, &of) != nil || of.Q == nil {
		return nil
	}
	q, err := quantconfig.Read(of.Q)
	if err != nil {
		return nil
	}
	return q
}
