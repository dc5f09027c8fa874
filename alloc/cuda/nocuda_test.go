//go:build !cuda || !cgo

package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
)

func TestOpenSaysWhatToBuildWith(t *testing.T) {
	dev, err := cuda.Open(3)
	require.Nil(t, dev)
	require.ErrorIs(t, err, cuda.ErrNotBuilt)
	require.ErrorContains(t, err, "open CUDA device 3")
	require.ErrorContains(t, err, "-tags cuda")
}
