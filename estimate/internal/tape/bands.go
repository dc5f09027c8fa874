package tape

import (
	"strings"
)

// unmeasured has the kinds of layers that no measurement on a GPU in docs/estimate.md has.
type unmeasured uint8

const (
	Mixtures unmeasured = 1 << iota
	EncodersAndDecoders
	TwoTowers
	LowWindows
	LatentAttentions
	Recurrences
)

// String names the kinds, in plural.
func (u unmeasured) String() string {
	var names []string
	for i, name := range []string{"mixtures of experts without adapters", "encoders with decoders", "towers of images and texts", "windows over images in low precision", "latent attention", "recurrent layers"} {
		if u&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}
