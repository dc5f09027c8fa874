package estimate_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// What PyTorch was measured to do (testdata/torch/losses.py).
func TestTorchLossesOfHeads(t *testing.T) {
	data, err := os.ReadFile("testdata/torch/losses.json")
	require.NoError(t, err)
	var measured struct {
		Batch, Length, Hidden, Vocab, Chunks int
		Losses                               map[string]struct {
			Saved alloc.Bytes `json:"saved_bytes"`
			Peak  alloc.Bytes `json:"cpu_training_peak_bytes"`
		}
	}
	require.NoError(t, json.Unmarshal(data, &measured))
	head := estimate.Linear{In: measured.Hidden, Out: measured.Vocab, NoBias: true}
	losses := map[string][]estimate.Layer{
		"whole":    {head, estimate.NextToken{}},
		"chunked":  {estimate.HeadLoss{Linear: head, Chunks: measured.Chunks}},
		"widened":  {estimate.HeadLoss{Linear: head, Chunks: measured.Chunks, Widened: true}},
		"compiled": {estimate.HeadLoss{Linear: head, Chunks: measured.Chunks, Loss: estimate.NextToken{Fused: true}}},
	}
	require.Len(t, measured.Losses, len(losses))
	for name, want := range measured.Losses {
		t.Run(name, func(t *testing.T) {
			body := []estimate.Layer{estimate.Linear{In: measured.Hidden, Out: measured.Hidden, NoBias: true}}
			r := model(t, append(body, losses[name]...), estimate.InputShape(measured.Batch, measured.Length, measured.Hidden), estimate.Precision(alloc.BFloat16),
				estimate.Train(estimate.NoOptimizer), estimate.On(estimate.CPU), estimate.Loops(estimate.Loop{Output: estimate.OutputDropped}))
			assert.InEpsilon(t, float64(want.Saved), float64(r.Kept), 0.003)
			assert.InEpsilon(t, float64(want.Peak), float64(r.Training.Peak-besides(r.Training)), 0.035)
		})
	}
}

func headLoss(t *testing.T, l estimate.HeadLoss, more ...estimate.Option) *estimate.Report {
	t.Helper()
	c := tiny["llama-tiny"]
	c.NoHead = true
	l.Linear = estimate.Linear{In: c.Hidden, Out: 1 << 15, NoBias: true}
	return model(t, append(c.Layers(), l), append([]estimate.Option{estimate.Tokens(4, 256), estimate.Precision(alloc.BFloat16), estimate.Train(estimate.AdamW)}, more...)...)
}

// Chunks need less at a time, and gradients that come with the loss keep no logits at all.
func TestHeadLoss(t *testing.T) {
	whole, chunked := headLoss(t, estimate.HeadLoss{}), headLoss(t, estimate.HeadLoss{Chunks: 8})
	assert.InDelta(t, float64(whole.Kept), float64(chunked.Kept), 100)
	assert.Less(t, chunked.Training.Peak, whole.Training.Peak)
	fused := headLoss(t, estimate.HeadLoss{Chunks: 8, Loss: estimate.NextToken{Fused: true}})
	assert.InEpsilon(t, float64(chunked.Kept-2*4*256<<15), float64(fused.Kept), 0.001, "two bytes a logit are kept in place of four")
	inForward := headLoss(t, estimate.HeadLoss{InForward: true})
	assert.LessOrEqual(t, inForward.Kept, fused.Kept-2*4*256<<15)
	assert.Less(t, inForward.Training.Peak, fused.Training.Peak)

	many := headLoss(t, estimate.HeadLoss{Chunks: 1 << 12})
	assert.Equal(t, headLoss(t, estimate.HeadLoss{Chunks: 256}).Training.Peak, many.Training.Peak, "no chunk is shorter than a token")
	for want, layers := range map[string][]estimate.Layer{
		"Chunks is -1": {estimate.HeadLoss{Linear: estimate.Linear{In: 8, Out: 8}, Chunks: -1}},
		"4096 at most": {estimate.HeadLoss{Linear: estimate.Linear{In: 8, Out: 8}, Chunks: 1 << 13}},
		"features":     {estimate.HeadLoss{Linear: estimate.Linear{In: 4, Out: 8}}},
	} {
		_, err := estimate.Model(layers, estimate.InputShape(1, 2, 8))
		assert.ErrorContains(t, err, want)
	}
}
