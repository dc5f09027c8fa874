package layer

import (
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Facts says what ran, as far as it decides how far the estimate may be off.
type Facts struct {
	Recurrent  bool // a layer is recurrent
	Stepwise   bool // a layer runs through the sequence in PyTorch's own operations
	Multiplies bool // a layer multiplies matrices
	Routed     bool // tokens were given to experts
	Towers     bool // the weights of a tower of images or sound are there, and nothing runs through them
	Rounded    bool // a convolution computes in a type other than float32

	Convolutions int         // that ran
	Lengthwise   int         // of them, those along a sound or a text that mix all channels
	Convolved    alloc.Bytes // largest tensor that a convolution reads or makes
	Varying      alloc.Bytes // tensors as large as the router's choice makes them, that exist at a time
	Transformed  alloc.Bytes // largest workspace of a convolution that computes with transformed tensors
	Unmeasured   Unmeasured  // kinds of layers that ran
}

// convolve notes a convolution that reads and makes tensors of these shapes. The tape reports sizes that are not valid.
func (f *Facts) convolve(d alloc.DType, shapes ...alloc.Shape) {
	for _, s := range shapes {
		if n, err := s.Bytes(d); err == nil {
			f.Convolved = max(f.Convolved, min(n, setting.MaxTotal))
		}
	}
}

// Ran holds the Facts of a tape.
var Ran tape.Slot[Facts]

// Unmeasured is a set of kinds of layers that no GPU measurement in docs/estimate.md covers.
type Unmeasured uint8

// The kinds.
const (
	Mixtures Unmeasured = 1 << iota
	EncodersAndDecoders
	TwoTowers
	LowWindows
	LatentAttentions
	Recurrences
	Distances
)

// String names the kinds, in plural.
func (u Unmeasured) String() string {
	var names []string
	for i, name := range []string{"mixtures of experts without adapters", "encoders with decoders", "towers of images and texts", "windows over images in low precision", "latent attention", "recurrent layers", "attention by distances"} {
		if u&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}
