package checkpoint

import (
	"cmp"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// quantization is the part of a config.json's quantization_config that says how large the weights
// become.
type quantization struct {
	Method string `json:"quant_method"`

	Bits     int `json:"bits"`       // GPTQ, and AWQ as transformers write it
	Group    int `json:"group_size"` // -1 for a whole row
	AWQBits  int `json:"w_bit"`
	AWQGroup int `json:"q_group_size"`

	FourBits    bool `json:"load_in_4bit"` // bitsandbytes
	EightBits   bool `json:"load_in_8bit"`
	DoubleQuant bool `json:"bnb_4bit_use_double_quant"`
}

// perElement returns the bytes that each element of a quantized weight takes, scales and zeros
// included; known is false for an unknown method. The layouts are those of AutoGPTQ and AutoAWQ
// (for each group, a float16 scale and a zero with the bits of a weight), bitsandbytes (a float32
// maximum for 64 elements, or with double quantization a byte for 64 and a float32 for 256 of
// those), and transformers' FP8 and MXFP4.
func (q *quantization) perElement() (bytes float64, known bool) {
	switch q.Method {
	case "gptq", "awq":
		bits := float64(cmp.Or(q.Bits, q.AWQBits, 4))
		group := float64(cmp.Or(q.Group, q.AWQGroup, 128))
		if bits < 1 || bits > 16 {
			return 0, false
		}
		if group < 1 {
			group = 1024 // a whole row: the scales hardly count
		}
		return bits/8 + (2+bits/8)/group, true
	case "bitsandbytes":
		switch {
		case q.EightBits:
			return 1, true
		case q.FourBits && q.DoubleQuant:
			return 0.5 + 1.0/64 + 4.0/(64*256), true
		case q.FourBits:
			return 0.5 + 4.0/64, true
		}
	case "fp8", "fbgemm_fp8":
		return 1 + 4.0/(128*128), true
	case "mxfp4":
		return 17.0 / 32, true
	}
	return 0, false
}

// base is how training holds such weights, by the words of estimate.Quantized; "" for a method that is not trained, or not known.
func (q *quantization) base() string {
	switch {
	case q == nil:
	case q.Method == "gptq" && cmp.Or(q.Bits, 4) == 4:
		return "gptq"
	case q.Method == "awq" && cmp.Or(q.Bits, q.AWQBits, 4) == 4:
		return "awq"
	case q.Method != "bitsandbytes":
	case q.EightBits:
		return "int8"
	case q.FourBits && q.DoubleQuant:
		return "nf4-double"
	case q.FourBits:
		return "nf4"
	}
	return ""
}

// quantizes reports whether the method packs the weights in a row of the report: the projections in
// the blocks, but with MXFP4 only the experts.
func (q *quantization) quantizes(row estimate.Row) bool {
	experts := strings.HasPrefix(row.Kind, "Experts")
	if q.Method == "mxfp4" {
		return experts
	}
	return (experts || row.Kind == "Linear") && inBlock(row.Path)
}

// inBlock reports whether a path goes through a numbered block.
func inBlock(path string) bool {
	for part := range strings.SplitSeq(path, ".") {
		if part != "" && strings.Trim(part, "0123456789") == "" {
			return true
		}
	}
	return false
}
