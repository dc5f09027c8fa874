package estimate_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// A layer whose output the loss does not read keeps its gradient None, and optimizers make no state for it. Its trained
// parameters still count as such, and sharding makes gradients for all.
func TestUnreachedLayersHaveNoGradients(t *testing.T) {
	const width = 64
	layers := []nn.Layer{nn.Module{Parts: nn.Sequential{nn.As("read", nn.Linear{In: width, Out: width}), nn.As("dropped", nn.Linear{In: width, Out: width})},
		Run: func(f *nn.Flow, x nn.Tensor) nn.Tensor {
			x = f.Call("read", x)
			f.Call("dropped", x)
			return x
		}}}
	each := int64(width*width + width)
	of := func(more ...estimate.Option) *estimate.Report {
		r, err := estimate.Model(layers, append(more, estimate.InputShape(2, width), estimate.Train("adam"), estimate.OnCPU())...)
		require.NoError(t, err)
		return r
	}
	r := of()
	assert.Equal(t, 2*each, r.Trained.Count)
	assert.Equal(t, alloc.Bytes(4*each), r.Gradients)
	assert.Equal(t, alloc.Bytes(8*each), r.Training.Optimizer)
	assert.Equal(t, alloc.Bytes(16*each), of(estimate.Sharding{Data: 2}).Training.Optimizer)
}
