package serving_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/serving"
)

// modelTypes returns the type of each model of testdata/configs.json.
func modelTypes(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile("testdata/configs.json")
	require.NoError(t, err)
	var configs map[string]struct {
		Type string `json:"model_type"`
	}
	require.NoError(t, json.Unmarshal(data, &configs))
	types := map[string]string{}
	for model, c := range configs {
		types[model] = c.Type
	}
	return types
}

// optional is a number, or 0 for an empty field.
func optional(t *testing.T, text string) int64 {
	t.Helper()
	if text == "" {
		return 0
	}
	return number(t, text)
}

// The planner of SGLang 0.5.23 itself gave these values, run on the CPU.
func TestSGLangPlansAsItself(t *testing.T) {
	types := modelTypes(t)
	rows := table(t, "sglang.csv")
	require.Equal(t, 61, len(rows))
	for i, row := range rows {
		model := row["model"]
		t.Run(fmt.Sprintf("%d %s", i+2, model), func(t *testing.T) {
			s := serving.SGLang{
				ModelType: types[model], Context: int(number(t, row["context"])), Page: int(number(t, row["page"])), Tensor: int(number(t, row["tensor"])),
				KVType: row["kv"], WindowRatio: float(t, row["window_ratio"]), StateRatio: float(t, row["state_ratio"]),
			}
			plan, err := s.Plan(specsOf(t, model), alloc.Bytes(number(t, row["budget"])))
			require.NoError(t, err)
			assert.InDelta(t, float(t, row["token_bytes"]), plan.BytesPerToken, 1e-6)
			assert.Equal(t, number(t, row["tokens"]), plan.Tokens)
			assert.Equal(t, optional(t, row["window_tokens"]), plan.WindowTokens)
			assert.EqualValues(t, optional(t, row["state_slot_bytes"]), plan.StateBytes)
			assert.EqualValues(t, optional(t, row["state_slots"]), plan.StateSlots)
			assert.EqualValues(t, number(t, row["max_requests"]), plan.MaxRequests)
			if most := row["max_requests_no_buffer"]; most != "" {
				s.StateBuffer = "no_buffer"
				plan, err = s.Plan(specsOf(t, model), alloc.Bytes(number(t, row["budget"])))
				require.NoError(t, err)
				assert.EqualValues(t, number(t, most), plan.MaxRequests)
			}
		})
	}
}

func TestSGLangStart(t *testing.T) {
	const gpu, weights = 80 * alloc.GiB, 15 * alloc.GiB
	s := serving.SGLang{Context: 8192}
	b, err := s.Start(serving.SGLangStart{Memory: gpu, Weights: weights})
	require.NoError(t, err)
	assert.InDelta(t, 0.831, b.Fraction, 0.05, "10 GiB and more are left to activations and graphs")
	assert.Equal(t, s.Budget(b.Free.Bytes, b.Free.Bytes-weights-b.Loading.Bytes, b.Fraction), b.Pools.Bytes)
	assert.Less(t, b.Pools.Lower, b.Pools.Bytes)
	assert.Less(t, b.Pools.Bytes, b.Pools.Upper)

	specs := specsOf(t, "qwen3-next-80b")
	for _, requests := range []int{1, 7, 50} {
		n, err := s.PoolsFor(specs, requests)
		require.NoError(t, err)
		plan, err := s.Plan(specs, n)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, plan.Requests, requests)
		less, _ := s.Plan(specs, n-2*alloc.MiB)
		assert.Less(t, less.Requests, requests)
		fraction, lower, upper, err := s.Fraction(serving.SGLangStart{Memory: gpu, Weights: weights}, n)
		require.NoError(t, err)
		assert.Less(t, lower, fraction)
		assert.Less(t, fraction, upper)
		b, err := s.Start(serving.SGLangStart{Memory: gpu, Weights: weights, Fraction: fraction})
		require.NoError(t, err)
		assert.GreaterOrEqual(t, b.Pools.Bytes, n)
		sure, err := s.Start(serving.SGLangStart{Memory: gpu, Weights: weights, Fraction: upper})
		require.NoError(t, err)
		assert.GreaterOrEqual(t, sure.Pools.Lower, n)
	}
	_, err = serving.SGLang{Context: 8192, MaxRequests: 3}.PoolsFor(specs, 4)
	require.ErrorContains(t, err, "whatever the memory")

	for want, start := range map[string]serving.SGLangStart{
		"a GPU of 0 B": {}, "a Fraction of 1.5": {Memory: gpu, Fraction: 1.5}, "a size is negative": {Memory: gpu, Weights: -1},
	} {
		_, err := s.Start(start)
		require.ErrorContains(t, err, want)
	}
}

// By hand, from the rules of SGLang 0.5.23's source.
func TestSGLangSettings(t *testing.T) {
	specs := specsOf(t, "gpt-oss-20b")
	budget := 10 * alloc.GiB
	s := serving.SGLang{ModelType: "gpt_oss", Context: 131072}
	plan, err := s.Plan(specs, budget)
	require.NoError(t, err)
	assert.Equal(t, 1, plan.Requests, "242,725 tokens, and 194,180 of windows")

	s.NoRadixCache, s.MaxRequests, s.Page = true, 16, 64
	plan, err = s.Plan(specs, budget)
	require.NoError(t, err)
	assert.EqualValues(t, 16*(128+128+128)+2*8192+64, plan.WindowTokens, "what 16 requests may hold, two chunks of prompts, and a page")
	assert.EqualValues(t, (int64(budget)-plan.WindowTokens*24576)/24576/64*64, plan.Tokens)
	assert.Equal(t, 3, plan.Requests)

	s = serving.SGLang{ModelType: "gpt_oss", Context: 1 << 20}
	plan, err = s.Plan(specs, budget)
	var small *serving.TooSmallError
	require.ErrorAs(t, err, &small)
	assert.EqualValues(t, plan.Tokens, small.Longest)
	assert.Greater(t, small.Needed, budget)

	hybrid := specsOf(t, "qwen3-next-80b")
	plan, err = serving.SGLang{Context: 8192, StateSlots: 40}.Plan(hybrid, budget)
	require.NoError(t, err)
	assert.Equal(t, 40, plan.StateSlots)
	assert.Equal(t, (int64(budget)-41*int64(plan.StateBytes))/24576, plan.Tokens)
	assert.Equal(t, 8, plan.MaxRequests, "five slots each")
	plan, err = serving.SGLang{Context: 8192, StateType: alloc.BFloat16}.Plan(hybrid, budget)
	require.NoError(t, err)
	assert.EqualValues(t, 36*(8192*3*2+32*128*128*2), plan.StateBytes)
	plan, err = serving.SGLang{Context: 8192, DraftLayers: 1}.Plan(hybrid, budget)
	require.NoError(t, err)
	assert.EqualValues(t, 24576+24576/12, plan.BytesPerToken)

	for want, s := range map[string]serving.SGLang{
		"a Context of 0":        {},
		"KVType is \"int3\"":    {Context: 1, KVType: "int3"},
		"StateBuffer is \"x\"":  {Context: 1, StateBuffer: "x"},
		"a setting is negative": {Context: 1, Page: 1, DraftLayers: -1},
		"a setting is above":    {Context: 1 << 30},
		"WindowRatio is 2":      {Context: 1, WindowRatio: 2},
		"needs MaxRequests":     {Context: 1, DraftTokens: 2},
	} {
		_, err := s.Plan(hybrid, budget)
		require.ErrorContains(t, err, want)
	}
	_, err = serving.SGLang{Context: 1}.Plan(nil, budget)
	require.ErrorContains(t, err, "0 layers")
}

// No settings and no sizes make it panic, run long, or give a number below 0.
func TestSGLangWithAnySettings(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	pick := func(of ...int) int { return of[random.IntN(len(of))] }
	kinds := []string{serving.Full, serving.Sliding, serving.Chunked, serving.Latent, serving.Cross, serving.Recurrent, serving.Full, ""}
	planned := 0
	for range 3000 {
		few := func() int { return pick(1, 2, 8, 64, 128, 1024) }
		some := few
		if random.IntN(3) == 0 {
			some = func() int { return pick(-1, 0, 1, 3, 128, 1<<27, math.MaxInt32) }
		}
		specs := make([]serving.CacheSpec, random.IntN(6))
		for i := range specs {
			specs[i] = serving.CacheSpec{
				Layer: i, Kind: kinds[random.IntN(len(kinds))], KVHeads: some(), HeadSize: some(), ValueSize: some(), Window: some(), Source: some(), Latent: some(), Index: pick(0, some()),
				Mixer: "mamba2", Channels: some(), Groups: pick(0, some()), GroupChannels: some(), Kernel: some(), StateHeads: some(), HeadState: some(),
			}
		}
		s := serving.SGLang{
			ModelType: []string{"", "gpt_oss", "llama"}[random.IntN(3)], Context: some(), Page: pick(0, some()), Tensor: pick(0, 1, some()), KVType: []string{"", "fp8", "mxfp8"}[random.IntN(3)],
			StateRatio: []float64{0, 1e-9, 1e3, math.NaN(), math.Inf(1)}[random.IntN(5)], StateSlots: pick(0, 0, some()), WindowRatio: []float64{0, 1e-12, 1}[random.IntN(3)],
			NoRadixCache: random.IntN(2) == 0, NoOverlap: random.IntN(2) == 0, ChunkedPrefill: pick(0, some()), MaxRequests: pick(0, some()), MaxTokens: int64(pick(0, some())), DraftLayers: pick(0, some()), DraftTokens: pick(0, some()),
		}
		for _, budget := range []alloc.Bytes{math.MinInt64, -1, 0, 1, alloc.GiB, 1 << 55, math.MaxInt64} {
			plan, err := s.Plan(specs, budget)
			if err == nil {
				planned++
				assert.Positive(t, plan.Requests)
			}
			assert.False(t, plan.Tokens < 0 || plan.WindowTokens < 0 || plan.StateBytes < 0 || plan.StateSlots < 0 || plan.MaxRequests < 0 || plan.Requests < 0, "%+v of %+v in %d", plan, s, budget)
		}
		pools, err := s.PoolsFor(specs, some())
		assert.True(t, err != nil || pools > 0)
	}
	assert.Greater(t, planned, 100)
}

func TestSGLangRefusesRecurrentLayersAlone(t *testing.T) {
	_, err := serving.SGLang{Context: 1}.Plan([]serving.CacheSpec{{Kind: serving.Recurrent, Mixer: "mamba2", Channels: 128, Kernel: 4, StateHeads: 8, HeadState: 64}}, alloc.GiB)
	assert.ErrorContains(t, err, "plan SGLang's pools: no layer keeps keys and values")
}

// Requests of the longest length run at once, and longer ones do not.
func TestSGLangLongest(t *testing.T) {
	for _, model := range []string{"llama-3-8b", "qwen3-next-80b"} {
		s, specs := serving.SGLang{Context: 1 << 20, Page: 16}, specsOf(t, model)
		for _, requests := range []int{1, 9, 20} {
			n, err := s.Longest(specs, 40*alloc.GiB, requests)
			require.NoError(t, err)
			require.Positive(t, n)
			at := s
			at.Context = n
			plan, err := at.Plan(specs, 40*alloc.GiB)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, plan.Requests, requests)
			at.Context = n + 1
			longer, _ := at.Plan(specs, 40*alloc.GiB)
			assert.True(t, n == s.Context || longer.Requests < requests, "%s: %d of %d tokens", model, requests, n)
		}
		none, err := s.Longest(specs, -alloc.GiB, 1)
		require.NoError(t, err)
		assert.Zero(t, none)
		short, err := serving.SGLang{Context: 100}.Longest(specs, 40*alloc.GiB, 1)
		require.NoError(t, err)
		assert.Equal(t, 100, short, "no longer than Context")
	}
	_, err := serving.SGLang{}.Longest(specsOf(t, "llama-3-8b"), alloc.GiB, 1)
	require.ErrorContains(t, err, "a Context of 0")
}
