package estimate_test

import (
	"testing"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/encoder"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/seq2seq"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/vision"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
)

// The option does what layers with a loss do, in training alone.
func TestWithLoss(t *testing.T) {
	c := tiny["llama-tiny"]
	train := func(layers []tape.Layer, more ...estimate.Option) *estimate.Report {
		return model(t, layer.Public(layers), append(opts(estimate.Tokens(2, 64), estimate.Precision(alloc.BFloat16), estimate.Train("adamw")), more...)...)
	}
	assert.Equal(t, train(with(c.Layers(), layer.NextToken{})).Training, train(c.Layers(), estimate.WithLoss(layer.Public([]tape.Layer{c.Loss()})[0])).Training)

	chunks := layer.HeadLoss{Chunks: 4}
	assert.Equal(t, train(headless(c, chunks)).Training.Peak.Bytes, train(c.Layers(), estimate.WithLoss(layer.Public([]tape.Layer{chunks})[0])).Training.Peak.Bytes)

	serve := []estimate.Option{estimate.Tokens(2, 64)}
	assert.Equal(t, model(t, layer.Public(c.Layers()), serve...).Inference, model(t, layer.Public(c.Layers()), append(serve, estimate.WithLoss(layer.Public([]tape.Layer{chunks})[0]))...).Inference)

	_, err := estimate.Model(layer.Public(with(c.Layers(), layer.SiLU{})), estimate.Tokens(2, 64), estimate.Train("adamw"), estimate.WithLoss(layer.Public([]tape.Layer{chunks})[0]))
	assert.ErrorContains(t, err, "the last layer is SiLU")
}

func TestLossOfTransformers(t *testing.T) {
	head := family.Transformer{Head: family.Head{NoHead: true}}
	assert.Nil(t, head.Loss())
	assert.Equal(t, layer.NextToken{}, mistral7b.Loss())
	assert.Nil(t, bertLarge.Loss())
	assert.Nil(t, family.Transformer{Family: vision.SigLIP}.Loss())
	assert.Equal(t, layer.CrossEntropy{}, family.Transformer{Family: seq2seq.T5}.Loss())
	assert.Equal(t, layer.CrossEntropy{}, family.Transformer{Family: encoder.BERT, Head: family.Head{MaskedLM: true}}.Loss())
}

// headless is the model without its head, and a head that takes its loss by itself.
func headless(c family.Transformer, l layer.HeadLoss) []tape.Layer {
	l.Linear = layer.Linear{In: c.Hidden, Out: c.Vocab, NoBias: true}
	if c.Tied {
		l.Tied = ".model.embed_tokens.weight"
	}
	c.NoHead = true
	return with(c.Layers(), tape.As("lm_head", l))
}
