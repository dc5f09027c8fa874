package serving_test

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
	"github.com/gpumemtrack/gpumemtrack/estimate/serving"
)

// specsOf returns the specs of a model of testdata/configs.json.
func specsOf(t *testing.T, model string) []serving.CacheSpec {
	t.Helper()
	data, err := os.ReadFile("testdata/configs.json")
	require.NoError(t, err)
	var configs map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(data, &configs))
	require.Contains(t, configs, model)
	f, err := checkpoint.ParseConfig(model, configs[model])
	require.NoError(t, err)
	specs, err := f.CacheSpecs()
	require.NoError(t, err)
	return specs
}

// table reads a file of testdata, a map of columns for each row.
func table(t *testing.T, file string) []map[string]string {
	t.Helper()
	f, err := os.Open("testdata/" + file)
	require.NoError(t, err)
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	require.NoError(t, err)
	var all []map[string]string
	for _, row := range rows[1:] {
		of := map[string]string{}
		for i, name := range rows[0] {
			of[name] = row[i]
		}
		all = append(all, of)
	}
	return all
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return n
}

func float(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(text, 64)
	require.NoError(t, err)
	return n
}

// groupsOf describes groups as the tables do: those that are equal together.
func groupsOf(groups []serving.VLLMGroup) string {
	count := map[string]int{}
	for _, g := range groups {
		kind := g.Kind
		if kind == "" {
			kind = "mixed"
		}
		count[fmt.Sprintf("%s: %d layers, block %d, page %d, %d a request", kind, len(g.Layers), g.Block, g.Page, g.Blocks)]++
	}
	var words []string
	for text, n := range count {
		words = append(words, fmt.Sprintf("%d x %s", n, text))
	}
	slices.Sort(words)
	return strings.Join(words, "; ")
}

// gib is a size as vLLM prints it.
func gib(n alloc.Bytes) float64 {
	f, _ := strconv.ParseFloat(fmt.Sprintf("%.2f", float64(n)/float64(alloc.GiB)), 64)
	return f
}

// The planner of vLLM 0.33.0 itself gave these values, run on the CPU.
func TestVLLMPlansAsItself(t *testing.T) {
	specs := map[string][]serving.CacheSpec{}
	rows := table(t, "vllm.csv")
	require.Len(t, rows, 99)
	for i, row := range rows {
		model := row["model"]
		if specs[model] == nil {
			specs[model] = specsOf(t, model)
		}
		t.Run(fmt.Sprintf("%d %s", i+2, model), func(t *testing.T) {
			get := func(column string) int { return int(number(t, row[column])) }
			v := serving.VLLM{
				MaxModelLen: get("max_model_len"), MaxBatchedTokens: get("in_flight"), NoAsync: true, Tensor: get("tensor"), KVType: row["kv"], Capability: "8.0",
				NoPrefixCaching: get("prefix_caching") == 0, DraftTokens: get("draft_tokens"), NoHybridManager: get("hybrid_manager") == 0,
			}
			if v.Block = get("block"); v.Block == 16 {
				v.Block = 0
			}
			if model == "deepseek-v3" {
				v.Backend = "FLASHMLA"
			}
			if get("checkpoints") == 1 {
				v.Capability = "9.0"
			}
			for range get("draft_layers") {
				at := slices.IndexFunc(specs[model], func(s serving.CacheSpec) bool { return s.Kind == serving.Full })
				v.Draft = append(v.Draft, specs[model][at])
			}
			plan, err := v.Plan(specs[model], alloc.Bytes(number(t, row["budget"])))
			sorted := strings.Split(row["groups"], "; ")
			slices.Sort(sorted)
			assert.Equal(t, strings.Join(sorted, "; "), groupsOf(plan.Groups))
			assert.Equal(t, row["bytes_per_block"], fmt.Sprint(int64(plan.BytesPerBlock)))
			assert.Equal(t, row["blocks_per_request"], fmt.Sprint(plan.BlocksPerRequest))
			if row["needed_gib"] != "" {
				small := &serving.TooSmallError{}
				require.True(t, errors.As(err, &small), "%v", err)
				assert.InDelta(t, float(t, row["needed_gib"]), gib(small.Needed), 1e-9)
				assert.InDelta(t, float(t, row["available_gib"]), gib(small.Available), 1e-9)
				assert.Equal(t, row["longest"], fmt.Sprint(small.Longest))
				return
			}
			require.NoError(t, err)
			assert.Equal(t, row["blocks"], fmt.Sprint(plan.Blocks))
			assert.Equal(t, row["tokens"], fmt.Sprint(plan.Tokens))
			assert.InDelta(t, float(t, row["concurrency"]), plan.Concurrency, 0.0051)
		})
	}
}

// Start-up logs that people published, with the memory that they print for the cache.
func TestVLLMPublishedLogs(t *testing.T) {
	gibs := func(n float64) alloc.Bytes { return alloc.Bytes(n * float64(alloc.GiB)) }
	for _, c := range []struct {
		source, model string
		v             serving.VLLM
		budget        alloc.Bytes
		tokens        int64
		concurrency   float64
		blocks, each  int
	}{
		{"club-3090 issue 612, Qwen3.6-35B-A3B on an RTX 3090", "qwen3.6-35b-a3b", serving.VLLM{Version: "0.24.0", Capability: "8.6", KVType: "fp8", MaxModelLen: 131072}, gibs(5.98), 567978, 4.33, 299, 69},
		{"club-3090 issue 594, Qwen3.6-27B on two, three drafted tokens", "qwen3.6-27b", serving.VLLM{Version: "0.24.0", Capability: "8.6", KVType: "fp8", Tensor: 2, MaxModelLen: 262144, DraftTokens: 3}, gibs(5.33), 300220, 1.15, 205, 179},
		{"hf-mem issue 61, Gemma 4 31B before the size was that of requests", "gemma-4-31b", serving.VLLM{Version: "0.19.0", MaxModelLen: 8192, MaxBatchedTokens: 2048}, gibs(24.54), 26800, 0, 0, 0},
		{"vllm issue 40691, Qwen3.5-27B without prefix caching", "qwen3.6-27b", serving.VLLM{Version: "0.19.0", MaxModelLen: 32768, NoPrefixCaching: true}, 1487 * 51380224, 290864, 33.04, 1487, 45},
	} {
		t.Run(c.source, func(t *testing.T) {
			specs := specsOf(t, c.model)
			if c.v.DraftTokens > 0 { // the prediction of several tokens has one layer more, which attends
				c.v.Draft = []serving.CacheSpec{specs[slices.IndexFunc(specs, func(s serving.CacheSpec) bool { return s.Kind == serving.Full })]}
			}
			plan, err := c.v.Plan(specs, c.budget)
			require.NoError(t, err)
			assert.Equal(t, c.tokens, plan.Tokens)
			if c.concurrency > 0 {
				assert.InDelta(t, c.concurrency, plan.Concurrency, 0.0051)
				assert.Equal(t, [2]int{c.blocks, c.each}, [2]int{plan.Blocks, plan.BlocksPerRequest})
			}
		})
	}
	// vllm issue 49878: since 0.26 two batches of 32,768 tokens may be in flight.
	for version, needed := range map[string]float64{"0.25.1": 45.79, "0.26.0": 70.79} {
		v := serving.VLLM{Version: version, MaxModelLen: 262144, MaxBatchedTokens: 32768}
		_, err := v.Plan(specsOf(t, "gemma-4-31b"), 20*alloc.GiB)
		small := &serving.TooSmallError{}
		require.ErrorAs(t, err, &small)
		assert.InDelta(t, needed, gib(small.Needed), 1e-9, version)
	}
}

// Layouts whose outermost dimension is the block pack pages side by side (VLLM_KV_CACHE_LAYOUT=BLHNC, run on the CPU).
func TestVLLMPacksPages(t *testing.T) {
	for model, want := range map[string]struct {
		tokens int64
		blocks int
		bytes  alloc.Bytes
	}{"gemma-4-31b": {314949, 32768, 1310720}, "gemma-4-26b-a4b": {1125036, 0, 0}} {
		for _, outermost := range []bool{true, false} {
			plan, err := serving.VLLM{MaxModelLen: 262144, BlockOutermost: outermost}.Plan(specsOf(t, model), 40*alloc.GiB)
			require.NoError(t, err)
			switch {
			case outermost && want.blocks > 0:
				assert.Equal(t, [2]int64{int64(want.blocks), int64(want.bytes)}, [2]int64{int64(plan.Blocks), int64(plan.BytesPerBlock)})
				fallthrough
			case outermost:
				assert.Equal(t, want.tokens, plan.Tokens, model)
				assert.Equal(t, 16, plan.Groups[0].Block)
			case model == "gemma-4-26b-a4b":
				assert.Equal(t, int64(1259798), plan.Tokens)
			}
		}
	}
}

// A budget for a number of requests holds so many, and one byte less does not.
func TestVLLMBudget(t *testing.T) {
	for _, model := range []string{"llama-3-8b", "gemma-3-27b", "qwen3-next-80b", "kimi-linear-48b", "whisper-large-v3"} {
		for _, stages := range []int{1, 2, 3} {
			v, specs := serving.VLLM{MaxModelLen: 448, Pipeline: stages, Tensor: 2}, specsOf(t, model)
			budget, err := v.Budget(specs, 7)
			require.NoError(t, err)
			plan, err := v.Plan(specs, budget)
			require.NoError(t, err)
			assert.Equal(t, 7, plan.Requests, model)
			less, err := v.Plan(specs, budget-1)
			require.NoError(t, err)
			assert.Equal(t, 6, less.Requests, model)
			longest, err := v.Longest(specs, budget, 7)
			require.NoError(t, err)
			assert.Equal(t, 448, longest)
		}
	}
	v, specs := serving.VLLM{MaxModelLen: 1 << 20}, specsOf(t, "llama-3-8b")
	longest, err := v.Longest(specs, 40*alloc.GiB, 10)
	require.NoError(t, err)
	assert.Equal(t, (20480-1)/10*16, longest)
	one, err := v.Plan(specs, 30*alloc.GiB)
	require.ErrorContains(t, err, "a request of 1048576 tokens needs 128.0 GiB of cache, and there is 30.0 GiB: the longest that fits has 245744 tokens")
	assert.NotZero(t, one.BytesPerBlock)
}

// Before 0.27 the block of a latent beside recurrent states was no multiple of 128 tokens.
func TestVLLMBlockOfLatentBesideStates(t *testing.T) {
	for version, multiple := range map[string]bool{"0.26.1": false, "0.27.0": true} {
		plan, err := serving.VLLM{Version: version, MaxModelLen: 8192, Capability: "8.0"}.Plan(specsOf(t, "kimi-linear-48b"), 40*alloc.GiB)
		require.NoError(t, err)
		assert.Equal(t, multiple, plan.Block%128 == 0, "%s: %d", version, plan.Block)
	}
}

// A pipeline's stage with most layers decides.
func TestVLLMPipeline(t *testing.T) {
	v := serving.VLLM{MaxModelLen: 8192, Pipeline: 3}
	plan, err := v.Plan(specsOf(t, "llama-3-8b"), 40*alloc.GiB)
	require.NoError(t, err)
	assert.Equal(t, alloc.Bytes(11*65536), plan.BytesPerBlock)
}

func TestVLLMRefuses(t *testing.T) {
	full := serving.CacheSpec{Kind: serving.Full, KVHeads: 8, HeadSize: 128, ValueSize: 128}
	latent := serving.CacheSpec{Kind: serving.Latent, Latent: 576}
	state := serving.CacheSpec{Kind: serving.Recurrent, Mixer: "delta", Channels: 100, Kernel: 4, StateHeads: 10, HeadState: 64}
	for want, c := range map[string]struct {
		v     serving.VLLM
		specs []serving.CacheSpec
	}{
		"MaxModelLen is 0":                        {serving.VLLM{}, []serving.CacheSpec{full}},
		"no layer keeps anything":                 {serving.VLLM{MaxModelLen: 1}, nil},
		`KVType is "q8_0"`:                        {serving.VLLM{MaxModelLen: 1, KVType: "q8_0"}, []serving.CacheSpec{full}},
		"a setting is negative":                   {serving.VLLM{MaxModelLen: 1, DraftTokens: -1}, []serving.CacheSpec{full}},
		"a setting is above":                      {serving.VLLM{MaxModelLen: 1 << 30}, []serving.CacheSpec{full}},
		"layer 0, of no kind: its kind":           {serving.VLLM{MaxModelLen: 1}, []serving.CacheSpec{{}}},
		"does not divide its 10 heads":            {serving.VLLM{MaxModelLen: 1, Tensor: 4}, []serving.CacheSpec{state}},
		"a KVType of fp8_ds_mla is not for":       {serving.VLLM{MaxModelLen: 1, KVType: "fp8_ds_mla"}, []serving.CacheSpec{full}},
		"a KVType of nvfp4 is not for this kind":  {serving.VLLM{MaxModelLen: 1, KVType: "nvfp4"}, []serving.CacheSpec{latent}},
		"that reads a text in an encoder":         {serving.VLLM{MaxModelLen: 1}, []serving.CacheSpec{full, {Kind: serving.Cross, KVHeads: 8, HeadSize: 128, ValueSize: 128}}},
		"needs its hybrid manager for layers":     {serving.VLLM{MaxModelLen: 1, NoHybridManager: true}, []serving.CacheSpec{full, state}},
		"pages of its layers cannot be made equa": {serving.VLLM{MaxModelLen: 1}, []serving.CacheSpec{latent, {Kind: serving.Chunked, Window: 8, KVHeads: 8, HeadSize: 100, ValueSize: 100}, {Kind: serving.Cross, Source: 8, KVHeads: 8, HeadSize: 100, ValueSize: 100}}},
	} {
		_, err := c.v.Plan(c.specs, alloc.GiB)
		require.ErrorContains(t, err, want)
		assert.True(t, strings.HasPrefix(err.Error(), "plan vLLM's cache: "), "%v", err)
	}
}

// What each --kv-cache-dtype takes of a token, in a layer of 8 heads of 128 elements or of a latent of 576 elements.
func TestVLLMKVTypes(t *testing.T) {
	full := []serving.CacheSpec{{Kind: serving.Full, KVHeads: 8, HeadSize: 128, ValueSize: 128}}
	for kv, want := range map[string]alloc.Bytes{"": 4096, "auto": 4096, "fp8": 2048, "int8_per_token_head": 2048 + 64, "fp8_per_token_head": 2048 + 64, "int4_per_token_head": 1024 + 64, "nvfp4": 8 * 2 * (64 + 8)} {
		plan, err := serving.VLLM{MaxModelLen: 16, KVType: kv}.Plan(full, alloc.GiB)
		require.NoError(t, err)
		assert.Equal(t, 16*want, plan.BytesPerBlock, kv)
	}
	latent := []serving.CacheSpec{{Kind: serving.Latent, Latent: 576, Index: 128}}
	for kv, want := range map[string]alloc.Bytes{"auto": 1152 + 132, "fp8_ds_mla": 656 + 132, "fp8": 656 + 132, "nvfp4_ds_mla": 352 + 132} {
		plan, err := serving.VLLM{MaxModelLen: 16, KVType: kv}.Plan(latent, alloc.GiB)
		require.NoError(t, err)
		assert.Equal(t, 64, plan.Block)
		assert.Equal(t, 64*want, plan.BytesPerBlock, kv)
	}
}

// No settings and no sizes make it panic, or run long.
func TestVLLMWithAnySettings(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...int) int { return of[random.IntN(len(of))] }
	sizes := []int{-1, 0, 1, 2, 3, 7, 16, 100, 128, 1 << 27, math.MaxInt32}
	kinds := []string{serving.Full, serving.Sliding, serving.Chunked, serving.Latent, serving.Cross, serving.Recurrent, "", "full"}
	planned := 0
	for range 4000 {
		few := func() int { return pick(1, 2, 8, 64, 128, 1024) }
		some := few
		if random.IntN(3) == 0 {
			some = func() int { return pick(sizes...) }
		}
		specs := make([]serving.CacheSpec, random.IntN(12))
		for i := range specs {
			specs[i] = serving.CacheSpec{
				Layer: i, Kind: kinds[random.IntN(len(kinds))], KVHeads: some(), HeadSize: some(), ValueSize: some(), Window: some(), Source: some(), Latent: some(), Index: pick(0, 0, some()),
				Mixer: []string{"delta", "kda", "mamba", "mamba2", "conv"}[random.IntN(5)], Channels: some(), Groups: pick(0, some()), GroupChannels: some(), Kernel: some(), StateHeads: some(), HeadState: some(),
			}
		}
		v := serving.VLLM{
			MaxModelLen: some(), MaxBatchedTokens: some(), Block: pick(0, some()), Tensor: pick(0, 1, some()), Pipeline: pick(0, 1, some()), DraftTokens: pick(0, some()), DraftModules: pick(0, some()), Blocks: pick(0, some()),
			NoPrefixCaching: random.IntN(2) == 0, NoHybridManager: random.IntN(4) == 0, BlockOutermost: random.IntN(2) == 0, Version: []string{"", "0.19", "v0.25.1rc2", "x"}[random.IntN(4)],
			KVType: []string{"", "fp8", "nvfp4", "fp8_ds_mla"}[random.IntN(4)],
		}
		for _, budget := range []alloc.Bytes{math.MinInt64 / 2, 0, 1, alloc.GiB, 1 << 55} {
			plan, err := v.Plan(specs, budget)
			if err == nil {
				planned++
				assert.Positive(t, plan.BytesPerBlock)
				assert.Positive(t, plan.BlocksPerRequest)
				assert.GreaterOrEqual(t, plan.Blocks, plan.Requests)
			}
			_, _ = v.Longest(specs, budget, some())
		}
		_, _ = v.Budget(specs, some())
	}
	assert.Greater(t, planned, 100)
}
