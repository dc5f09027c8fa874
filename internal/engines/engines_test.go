package engines_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/engines"
)

func named(t *testing.T, name string) engines.Engine {
	e, err := engines.Named(name)
	require.NoError(t, err)
	return e
}

// values are the flags that a run has by default, unless some are given.
func values(e engines.Engine, run engines.Run, given ...string) map[string]string {
	all := map[string]string{}
	for _, d := range e.For(run, func(flag string) bool { return len(given) > 0 && flag == given[0] }) {
		all[d.Flag] = d.Value
	}
	return all
}

func TestDefaultsByRelease(t *testing.T) {
	llama := named(t, "Llama.cpp")
	assert.Equal(t, map[string]string{"ubatch": "512", "flash-attention": "auto", "slots": "4", "kv-unified": "true"}, values(llama, engines.Run{}))
	assert.Equal(t, map[string]string{"ubatch": "512", "flash-attention": "false", "slots": "1", "kv-unified": "false"}, values(llama, engines.Run{Release: "b6000"}))
	assert.Equal(t, "auto", values(llama, engines.Run{Release: "b6325"})["flash-attention"])
	assert.Equal(t, map[string]string{"ubatch": "512", "flash-attention": "auto", "kv-unified": "false"}, values(llama, engines.Run{}, "slots"), "--parallel 2 alone has a cache for each slot")

	trainer := named(t, "transformers")
	assert.Equal(t, "fused", values(trainer, engines.Run{Mode: "train"})["optimizer-form"])
	assert.Equal(t, "foreach", values(trainer, engines.Run{Mode: "train", Release: "4.53.1"})["optimizer-form"])
	assert.Empty(t, values(trainer, engines.Run{Mode: "serve"}))
}

func TestDefaultsByGPU(t *testing.T) {
	vllm, sglang := named(t, "vllm"), named(t, "sglang")
	for _, c := range []struct {
		run          engines.Run
		vllm, sglang string
	}{
		{engines.Run{}, "2048", "4096"},
		{engines.Run{GPU: "4080", Memory: 16 * alloc.GiB}, "2048", "2048"},
		{engines.Run{GPU: "4090", Memory: 24 * alloc.GiB}, "2048", "4096"},
		{engines.Run{GPU: "a100", Memory: 80 * alloc.GiB}, "2048", "8192"},
		{engines.Run{GPU: "h100", Memory: 80 * alloc.GiB}, "8192", "8192"},
		{engines.Run{GPU: "b200", Memory: 180 * alloc.GiB}, "16384", "16384"},
		{engines.Run{GPU: "b200", Memory: 180 * alloc.GiB, Release: "0.27.1"}, "8192", "16384"},
	} {
		assert.Equal(t, c.vllm, values(vllm, c.run)["max-batched-tokens"], "%+v", c.run)
		assert.Equal(t, c.sglang, values(sglang, c.run)["max-batched-tokens"], "%+v", c.run)
	}
}

func TestDefaultsByModel(t *testing.T) {
	vllm := named(t, "vllm")
	states, images := []string{engines.Recurrent}, []string{engines.WholeImages}
	assert.Equal(t, "true", values(vllm, engines.Run{Model: states, Release: "0.27.1"})["no-prefix-caching"])
	for _, run := range []engines.Run{{Model: states}, {Model: states, Release: "0.28.0"}, {Release: "0.27.1"}} {
		assert.NotContains(t, values(vllm, run), "no-prefix-caching", "%+v", run)
	}
	assert.NotContains(t, values(vllm, engines.Run{Model: states, Release: "0.27.1"}, "prefix-caching"), "no-prefix-caching")
	assert.Equal(t, "2496", values(vllm, engines.Run{Model: images})["max-batched-tokens"])
	assert.Equal(t, "8192", values(vllm, engines.Run{Model: images, GPU: "h100", Memory: 80 * alloc.GiB})["max-batched-tokens"])
}

func TestEveryDefaultHasASource(t *testing.T) {
	for _, name := range engines.Names() {
		e := named(t, name)
		assert.True(t, e.Serves || e.Trains, name)
		assert.True(t, engines.IsRelease(e.Latest), name)
		for _, d := range e.Defaults {
			assert.Regexp(t, `^[-\w/]+\.(py|h|cpp|sh), [\w.]+`, d.Source, "%s --%s", name, d.Flag)
			assert.NotEmpty(t, d.Setting, "%s --%s", name, d.Flag)
		}
	}
	_, err := engines.Named("tgi")
	assert.ErrorContains(t, err, `no engine is named "tgi": want one of transformers, trl, llama.cpp, vllm`)
}

func TestCompare(t *testing.T) {
	for _, order := range [][]string{{"0.9.2", "v0.20", "0.20.1rc1", "0.20.2"}, {"b999", "b6325", "0.1.0", "v0.5.0"}} {
		for i := range order[1:] {
			assert.Negative(t, engines.Compare(order[i], order[i+1]), order[i])
			assert.Positive(t, engines.Compare(order[i+1], order[i]), order[i])
		}
	}
	assert.Zero(t, engines.Compare("v0.26.1", "0.26.1"))
	for _, text := range []string{"", "b", "new", "bb1", "v"} {
		assert.False(t, engines.IsRelease(text), text)
	}
}
