package nvml

import (
	"errors"

	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
)

// cudaUUIDs asks CUDA for its devices, in the order of their ordinals. It makes no
// context, so that it takes no memory of theirs.
func cudaUUIDs() ([]string, error) {
	infos, err := cuda.Devices()
	if errors.Is(err, cuda.ErrNoDevice) { // none is left
		return nil, nil
	}
	var uuids []string
	for _, info := range infos {
		uuids = append(uuids, info.UUID)
	}
	return uuids, err
}
