package estimate_test

import (
	"fmt"
	"testing"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
)

// pool is what vLLM had for keys and values: a share of the device, less what a run of as many
// tokens as it batches needs. It computes the logits of few of them, so that the head is left out of the run.
type pool struct {
	name, source string
	model        family.Transformer
	tokens       int
	gpu          estimate.Machine
	device       alloc.Bytes // nine tenths of which vLLM takes
	weights, mib float64     // as printed; 0 where the weights are not
}

const vllm = "vllm-project/vllm, pull request "

var pools = []pool{
	{"Llama 3 8B", vllm + "10511", llama8b, 8192, estimate.Machine{GPU: "hopper", Loading: "lazy"}, 81121 * alloc.MiB, 15319.04, 54568.96},
	{"Llama 2 7B", vllm + "2031; a device of 79.15 GiB assumed", llama7b, 4096, estimate.Machine{GPU: "ampere", Loading: "lazy"}, 81050 * alloc.MiB, 0, 58808},
}

// estimated are the weights, and what is left for keys and values, in MiB.
func (p pool) estimated(t *testing.T) (weights, left float64) {
	t.Helper()
	c := p.model
	whole := model(t, layer.Public(c.Layers()), estimate.Precision(alloc.BFloat16)).Inference.Weights
	c.NoHead = true
	body := model(t, layer.Public(c.Layers()), estimate.Tokens(1, p.tokens), estimate.Precision(alloc.BFloat16), p.gpu)
	needs := body.Inference.Footprint.Device.Bytes + whole - body.Inference.Weights
	return float64(whole) / float64(alloc.MiB), (0.9*float64(p.device) - float64(needs)) / float64(alloc.MiB)
}

func (p pool) row(t *testing.T) string {
	weights, left := p.estimated(t)
	printed := ""
	if p.weights > 0 {
		printed = fmt.Sprintf("%.0f", p.weights)
	}
	return fmt.Sprintf("| %s | %d | %s | %.0f | %.0f | %.0f | %+.1f %% | %s |\n", p.name, p.tokens, printed, weights, p.mib, left, 100*(p.mib/left-1), p.source)
}

func TestPublishedPools(t *testing.T) {
	for _, p := range pools {
		weights, left := p.estimated(t)
		if p.weights > 0 {
			assert.InEpsilon(t, p.weights, weights, 0.001, p.name)
		}
		assert.InEpsilon(t, p.mib, left, 0.05, p.name)
	}
}
