package estimate_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// A dropout at the end does nothing in inference: the caller holds its input, as it would the output of the layer before.
func TestInferenceHoldsWhatALastDropoutReturns(t *testing.T) {
	body := []nn.Layer{nn.Linear{In: 1024, Out: 4096}, nn.Linear{In: 4096, Out: 4096}}
	input := estimate.InputShape(512, 1024)
	alone, dropped := model(t, body, input), model(t, append(body, nn.Dropout{P: 0.1}), input)
	assert.Equal(t, alone.Inference.Peak, dropped.Inference.Peak)
	assert.Equal(t, alone.Inference.Footprint.Allocated, dropped.Inference.Footprint.Allocated)
	assert.Equal(t, alone.Inference.Footprint.Reserved, dropped.Inference.Footprint.Reserved)
}
