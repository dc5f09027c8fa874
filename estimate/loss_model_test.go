package estimate_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// The option does what layers with a loss do, in training alone.
func TestWithLoss(t *testing.T) {
	c := tiny["llama-tiny"]
	train := func(layers []estimate.Layer, more ...estimate.Option) *estimate.Report {
		return model(t, layers, append(opts(estimate.Tokens(2, 64), estimate.Precision(alloc.BFloat16), estimate.Train(estimate.AdamW)), more...)...)
	}
	assert.Equal(t, train(with(c.Layers(), estimate.NextToken{})).Training, train(c.Layers(), estimate.WithLoss(c.Loss())).Training)

	chunks := estimate.HeadLoss{Chunks: 4}
	assert.Equal(t, train(headless(c, chunks)).Training.Peak, train(c.Layers(), estimate.WithLoss(chunks)).Training.Peak)

	serve := []estimate.Option{estimate.Tokens(2, 64)}
	assert.Equal(t, model(t, c.Layers(), serve...).Inference, model(t, c.Layers(), append(serve, estimate.WithLoss(chunks))...).Inference)

	_, err := estimate.Model(with(c.Layers(), estimate.SiLU{}), estimate.Tokens(2, 64), estimate.Train(estimate.AdamW), estimate.WithLoss(chunks))
	assert.ErrorContains(t, err, "the last layer is SiLU")
}

func TestLossOfTransformers(t *testing.T) {
	head := estimate.Transformer{NoHead: true}
	assert.Nil(t, head.Loss())
	assert.Equal(t, estimate.NextToken{}, mistral7b.Loss())
	assert.Nil(t, bertLarge.Loss())
	assert.Nil(t, estimate.Transformer{Family: estimate.SigLIP}.Loss())
	assert.Equal(t, estimate.CrossEntropy{}, estimate.Transformer{Family: estimate.T5}.Loss())
	assert.Equal(t, estimate.CrossEntropy{}, estimate.Transformer{Family: estimate.BERT, MaskedLM: true}.Loss())
}
