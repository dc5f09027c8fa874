package estimating

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Start-up logs that print the memory of the cache. Each was asked once before anything was looked at; a log that lay outside of the
// bounds says why, and stays here until it is met.
func TestPoolsOfLogs(t *testing.T) {
	for source, c := range map[string]struct {
		command string
		printed float64 // GiB
		notMet  string
	}{
		"ilseokoh/vllm-gce, README": {"llama-3.1-8b --engine vllm --engine-version 0.15.1 --gpu a100-40gb --memory-fraction 0.9 --max-model-len 131072 --max-batched-tokens 8192 --enforce-eager", 19.28, ""},
		"a record of a program that computes the cache": {"qwen2.5-7b --engine vllm --engine-version 0.26.0 --gpu 4080 --memory-fraction 0.9 --max-model-len 32768 --quantize awq --dtype float16", 8.00,
			"7.12 GiB: vLLM saw 15.99 GiB, and the table has 14.90 GiB of this GPU"},
		"github.com/vllm-project/vllm/pull/57047": {"qwen3-4b --engine vllm --engine-version 0.30.0 --gpu 6000ada --memory-fraction 0.85 --max-model-len 2048 --quantize awq --dtype float16", 36.88,
			"34.18 GiB: vLLM saw 47.37 GiB, and the table has 44.43 GiB of such GPUs"},
		"github.com/vllm-project/vllm/issues/10517": {"llama-3.1-8b --engine vllm --engine-version 0.6.0 --gpu 3090 --memory-fraction 0.9 --max-model-len 20000", 3.81,
			"5.84 GiB: this release runs the longest request whole"},
	} {
		t.Run(source, func(t *testing.T) {
			cache := poolJSON(t, c.command, 0).Pool.Budget.Cache
			printed := alloc.Bytes(c.printed * float64(alloc.GiB))
			within := cache.Lower <= printed && printed <= cache.Upper
			assert.Equal(t, c.notMet == "", within, "%v, %v to %v: a note says which logs are not met", cache.Bytes, cache.Lower, cache.Upper)
		})
	}
}
