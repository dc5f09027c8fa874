package estimating

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate/serving"
)

// pooled is what --json prints of a pool.
type pooled struct {
	Name    string   `json:"name"`
	Assumed []string `json:"assumed"`
	Pool    struct {
		Engine   string                 `json:"engine"`
		Release  string                 `json:"release"`
		Memory   alloc.Bytes            `json:"gpu_bytes"`
		Fraction float64                `json:"memory_fraction"`
		Tokens   int                    `json:"max_model_len"`
		Step     int                    `json:"max_batched_tokens"`
		Budget   *serving.VLLMBudget    `json:"budget"`
		Plan     *serving.VLLMPlan      `json:"plan"`
		Lower    *poolHolds             `json:"at_least"`
		Upper    *poolHolds             `json:"at_most"`
		Asked    *poolAsked             `json:"asked"`
		TooSmall *serving.TooSmallError `json:"too_small"`
	} `json:"pool"`
}

func poolJSON(t *testing.T, args string, code int) pooled {
	t.Helper()
	var stdout, stderr bytes.Buffer
	require.Equal(t, code, run(strings.Fields("estimate "+args+" --json"), nil, &stdout, &stderr), stderr.String())
	var p pooled
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &p))
	return p
}

// Some defaults of vLLM depend on the model.
func TestPoolDefaultsOfModels(t *testing.T) {
	const states = "qwen3.6-27b --engine vllm --gpu a100 --max-model-len 32768 --engine-version "
	off := poolJSON(t, states+"0.27.1", 0)
	assert.Contains(t, off.Assumed, "--no-prefix-caching=true")
	assert.Equal(t, 784, off.Pool.Plan.Block, "of states in float32")
	assert.Equal(t, 42+3, off.Pool.Plan.BlocksPerRequest, "one state in each of three groups")
	for _, args := range []string{states + "0.28.0", states + "0.27.1 --enable-prefix-caching"} {
		on := poolJSON(t, args, 0)
		assert.NotContains(t, on.Assumed, "--no-prefix-caching=true")
		assert.Equal(t, 42+2*3, on.Pool.Plan.BlocksPerRequest, args)
	}
	assert.Equal(t, off.Pool.Plan, poolJSON(t, states+"0.27.1 --prefix-caching=false", 0).Pool.Plan)

	for args, step := range map[string]int{
		"gemma-4-31b --gpu a100": 2496, "gemma-4-26b-a4b-it --gpu a100": 2496, "gemma-4-31b --gpu h100": 8192, "gemma-4-e4b --gpu a100": 2048, "gemma-3-27b --gpu a100": 2048,
		"gemma-4-31b --gpu a100 --max-batched-tokens 2048": 2048,
	} {
		assert.Equal(t, step, poolJSON(t, args+" --engine vllm --max-model-len 1024", 0).Pool.Step, args)
	}
}

// What does not fit says why, and what to do.
func TestPoolThatHoldsNothing(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Equal(t, cli.ExitUnfit, run(strings.Fields("estimate llama-3.1-8b --engine vllm --gpu t4 --max-model-len 8192"), nil, &stdout, &stderr))
	assert.Contains(t, stdout.String(), "\nNo request fits, however short: ")
	assert.Contains(t, stdout.String(), "fits with no fraction: give more GPUs")
	assert.Equal(t, alloc.Bytes(94*alloc.GiB), poolJSON(t, "llama-3.1-8b --engine vllm --gpu h100 --fits 94GiB --max-model-len 8192", 0).Pool.Memory)
	for args, want := range map[string]string{
		"--gpu h1000": "--gpu h1000 is not known: did you mean h100",
		"--gpu h100 --prefix-caching --no-prefix-caching": "exclude each other",
		"--gpu hopper": "give --gpu, such as h100, its memory",
	} {
		stderr.Reset()
		require.Equal(t, cli.ExitUsage, run(strings.Fields("estimate llama-3.1-8b --engine vllm --max-model-len 8192 "+args), nil, &stdout, &stderr))
		assert.Contains(t, stderr.String(), want)
	}
}

// How many requests does vLLM hold?
func TestEstimatePool(t *testing.T) {
	const base = "llama-3-8b --engine vllm --gpu h100 --max-model-len 8192 "
	p := poolJSON(t, base, 0)
	assert.Equal(t, "Meta-Llama-3-8B", p.Name)
	assert.Equal(t, "vllm 0.33.0", p.Pool.Engine+" "+p.Pool.Release)
	assert.Equal(t, []string{"--memory-fraction", "0.92", "--max-requests", "1024", "--max-batched-tokens", "8192"}, p.Assumed)
	assert.Equal(t, 0.92, p.Pool.Fraction)
	assert.Equal(t, [2]int{8192, 8192}, [2]int{p.Pool.Tokens, p.Pool.Step})
	assert.Equal(t, alloc.Bytes(16060523008), p.Pool.Budget.Weights.Bytes)
	assert.Equal(t, p.Pool.Plan.Blocks, int(p.Pool.Budget.Cache.Bytes/(2*alloc.MiB)))
	assert.Less(t, p.Pool.Lower.Tokens, p.Pool.Plan.Tokens)
	assert.Less(t, p.Pool.Plan.Tokens, p.Pool.Upper.Tokens)
	assert.Nil(t, p.Pool.TooSmall)

	eager := poolJSON(t, base+"--enforce-eager", 0)
	assert.Equal(t, p.Pool.Budget.Graphs.Bytes, eager.Pool.Budget.Cache.Bytes-p.Pool.Budget.Cache.Bytes)
	fp8 := poolJSON(t, base+"--kv fp8 --kv-cache-memory 40GiB", 0)
	assert.Equal(t, int64(655360), fp8.Pool.Plan.Tokens)
	assert.Nil(t, fp8.Pool.Budget)
	alone := poolJSON(t, "llama-3-8b --engine vllm --kv-cache-memory 40GiB --max-model-len 8192", 0)
	assert.Equal(t, int64(327680), alone.Pool.Plan.Tokens, "needs no GPU")

	some := poolJSON(t, base+"--requests 20", 0)
	require.NotNil(t, some.Pool.Asked.Fraction)
	again := poolJSON(t, base+"--memory-fraction "+fractionText(*some.Pool.Asked.Fraction), 0)
	assert.GreaterOrEqual(t, again.Pool.Plan.Requests, 20)
	sure := poolJSON(t, base+"--memory-fraction "+fractionText(*some.Pool.Asked.FractionUpper), 0)
	assert.GreaterOrEqual(t, sure.Pool.Lower.Requests, 20)

	many := poolJSON(t, base+"--requests 500", cli.ExitUnfit)
	assert.Nil(t, many.Pool.Asked.Fraction)
	assert.Positive(t, *many.Pool.Asked.Longest)
	few := poolJSON(t, "llama-3-8b --engine vllm --gpu 4090 --max-model-len 131072", cli.ExitUnfit)
	assert.Equal(t, 16*alloc.GiB, few.Pool.TooSmall.Needed)
	assert.Positive(t, few.Pool.TooSmall.Longest)
}

// Tensor parallelism divides weights and heads.
func TestEstimatePoolOnSeveralGPUs(t *testing.T) {
	p := poolJSON(t, "llama-3-70b --engine vllm --gpu h100 --tp 4 --max-model-len 8192", 0)
	assert.Equal(t, alloc.Bytes(16*80*2*2*128*2), p.Pool.Plan.BytesPerBlock)
	assert.InDelta(t, int64(70553706496*2/4), int64(p.Pool.Budget.Weights.Bytes), 1e6)
	assert.GreaterOrEqual(t, p.Pool.Budget.Weights.Upper, p.Pool.Budget.Weights.Bytes)
}

// A start-up log of vLLM 0.19 has 13.72 GiB of weights and leaves 36.56 GiB for the cache: kernels pad weights in MXFP4.
func TestEstimatePoolOfQuantized(t *testing.T) {
	p := poolJSON(t, "gpt-oss-20b --engine vllm --engine-version 0.19.0 --gpu a100 --max-model-len 131072 --memory-fraction 0.65", 0)
	weights, logged := p.Pool.Budget.Weights, 1372*alloc.GiB/100
	assert.Less(t, weights.Bytes, logged)
	assert.Greater(t, weights.Upper, logged)
	assert.InEpsilon(t, 36.56*float64(alloc.GiB), float64(p.Pool.Budget.Cache.Bytes), 0.05)
}

// A config.json says what its layers keep.
func TestEstimatePoolOfConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5120,
		"num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
		"shared_expert_intermediate_size": 512, "linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
		"torch_dtype": "bfloat16"}`), 0o600))
	base := path + " --engine vllm --kv-cache-memory 40GiB --max-model-len 262144 "
	for flags, want := range map[string]int64{
		"--gpu ampere": 1725423, "--gpu ampere --no-prefix-caching": 1736095, "--gpu h100": 1710419, "--gpu ampere --draft-tokens 3": 1559865, "--gpu h100 --engine-version 0.30": 1725423,
	} {
		assert.Equal(t, want, poolJSON(t, base+flags, 0).Pool.Plan.Tokens, flags)
	}
}

// States are in the model's type, unless a flag of either engine names another.
func TestEstimatePoolOfStates(t *testing.T) {
	const base = "qwen3-next-80b-a3b --max-model-len 32768 --gpu h200 --tp 2 --engine "
	vllm := func(flag string) int64 { return poolJSON(t, base+"vllm "+flag, 0).Pool.Plan.Tokens }
	assert.Equal(t, vllm("--state-dtype bf16"), vllm("--mamba-ssm-cache-dtype bfloat16"))
	assert.NotEqual(t, vllm(""), vllm("--state-dtype float32"))
	assert.Equal(t, vllm(""), vllm("--state-dtype auto"))
	sglang := func(flag string) (p struct {
		Pool struct{ Plan serving.SGLangPlan }
	}) {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 0, run(strings.Fields("estimate "+base+"sglang --json "+flag), nil, &stdout, &stderr), stderr.String())
		require.NoError(t, json.Unmarshal(stdout.Bytes(), &p))
		return p
	}
	assert.Less(t, sglang("").Pool.Plan.Tokens, sglang("--mamba-ssm-dtype bfloat16").Pool.Plan.Tokens)
}

// SGLang divides the same memory by other rules.
func TestEstimatePoolOfSGLang(t *testing.T) {
	type planned struct {
		Pool struct {
			Fraction float64                `json:"memory_fraction"`
			Budget   *serving.SGLangBudget  `json:"budget"`
			Plan     *serving.SGLangPlan    `json:"plan"`
			Lower    *poolHolds             `json:"at_least"`
			Asked    *poolAsked             `json:"asked"`
			TooSmall *serving.TooSmallError `json:"too_small"`
		} `json:"pool"`
	}
	ask := func(args string, code int) (p planned) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		require.Equal(t, code, run(strings.Fields("estimate "+args+" --json"), nil, &stdout, &stderr), stderr.String())
		require.NoError(t, json.Unmarshal(stdout.Bytes(), &p))
		return p
	}
	const base = "gpt-oss-20b --engine sglang --gpu h100 --max-model-len 32768 "
	p := ask(base, 0)
	assert.InDelta(t, 0.83, p.Pool.Fraction, 0.02)
	assert.InDelta(t, 12*8*128*2*1.8, p.Pool.Plan.BytesPerToken, 1e-6, "layers with a window have a pool of their own")
	assert.LessOrEqual(t, p.Pool.Lower.Requests, p.Pool.Plan.Requests)
	exact := ask("llama-3-8b --engine sglang --kv-cache-memory 40GiB --max-model-len 8192 --block-size 64", 0)
	assert.EqualValues(t, 327680, exact.Pool.Plan.Tokens)
	assert.Nil(t, exact.Pool.Budget)

	some := ask(base+"--requests 20", 0)
	again := ask(base+"--memory-fraction "+fractionText(*some.Pool.Asked.FractionUpper), 0)
	assert.GreaterOrEqual(t, again.Pool.Lower.Requests, 20)
	assert.Nil(t, ask(base+"--requests 4000", cli.ExitUnfit).Pool.Asked.Fraction)
	few := ask("llama-3-8b --engine sglang --gpu 4090 --max-model-len 8192", cli.ExitUnfit)
	assert.Equal(t, alloc.GiB, few.Pool.TooSmall.Needed)
	assert.Positive(t, few.Pool.TooSmall.Longest)
}

// A model that reads images has 100 MiB less for its pools in SGLang, and another fraction.
func TestEstimatePoolOfSGLangWithTowers(t *testing.T) {
	ask := func(flags string) (p struct {
		Notes []string
		Pool  struct{ Budget serving.SGLangBudget }
	}) {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 0, run(strings.Fields("estimate "+flags+" --engine sglang --gpu h100 --max-model-len 8192 --json"), nil, &stdout, &stderr), stderr.String())
		require.NoError(t, json.Unmarshal(stdout.Bytes(), &p))
		return p
	}
	beside := func(flags string) alloc.Bytes {
		b := ask(flags).Pool.Budget
		return b.Static.Bytes - b.Weights.Bytes - b.Loading.Bytes - b.Pools.Bytes
	}
	assert.InDelta(t, int64(100*alloc.MiB), int64(beside("gemma-3-27b")), 2)
	assert.InDelta(t, 0, int64(beside("llama-3-8b")), 2)
	assert.Contains(t, strings.Join(ask("gemma-3-27b").Notes, " "), "some 5 % less")
	assert.NotContains(t, strings.Join(ask("gemma-3-27b --memory-fraction 0.8").Notes, " "), "some 5 % less")
}

// What does not fit is said in words, and what is proposed fits.
func TestPoolOfTooMany(t *testing.T) {
	for args, want := range map[string][]string{
		"llama-3-70b --engine vllm --gpu 4090 --requests 4":              {"which no fraction leaves: so many do not fit, however short they are.", "4 requests of 8,192 tokens do not fit, whatever the fraction, however short they are"},
		"llama-3-70b --engine sglang --gpu 4090 --requests 4":            {"which no fraction leaves: so many do not fit, however short they are."},
		"llama-3-70b --engine vllm --gpu 4090 --requests 1":              {"1 request of 8,192 tokens needs a cache of 2.5 GiB, which", "1 request of 8,192 tokens does not fit"},
		"llama-3-8b --engine sglang --gpu 4090 --requests 400":           {"which no fraction leaves: of requests of 151 tokens so many fit.", "the longest of which so many fit have 151 tokens"},
		"llama-3-70b --engine vllm --gpu 4090":                           {"fits with no fraction: give more GPUs with --tp, or smaller weights with --quantize.\n"},
		"llama-3-70b --engine sglang --gpu 4090":                         {"fits with no fraction: give more GPUs with --tp, or smaller weights with --quantize.\n"},
		"llama-3.1-8b --engine vllm --gpu 4090 --max-model-len 128000":   {"or shorter requests with --max-model-len, of at most 56,256 tokens."},
		"llama-3.1-8b --engine sglang --gpu 4090 --max-model-len 128000": {"or shorter requests with --max-model-len, of at most 60,786 tokens."},
		"llama-3-8b --engine vllm --gpu h100 --max-model-len 1":          {"requests of 1 token fit at once", "requests of 1 token at once"},
	} {
		if !strings.Contains(args, "--max-model-len") {
			args += " --max-model-len 8192"
		}
		var stdout, stderr bytes.Buffer
		run(strings.Fields("estimate "+args), nil, &stdout, &stderr)
		for _, text := range want {
			assert.Contains(t, stdout.String()+stderr.String(), text, args)
		}
	}
}

// Engines refuse texts that are longer than the model was made for.
func TestLongerThanTheModel(t *testing.T) {
	for args, want := range map[string]string{
		"--engine vllm --gpu h100 --max-model-len 8193":   "The model was made for texts of up to 8,192 tokens, fewer than 8,193: vLLM refuses such a --max-model-len unless the environment has VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",
		"--engine sglang --gpu h100 --max-model-len 8193": "SGLang refuses such a --context-length unless the environment has SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
		"--engine vllm --gpu h100 --serve --seq 8193":     "Note: the model was made for texts of up to 8,192 tokens, fewer than 8,193: vLLM refuses",
		"--serve --seq 8193":                              "Note: the model was made for texts of up to 8,192 tokens, fewer than 8,193\n",
		"--engine vllm --gpu h100 --max-model-len 8192":   "",
		"--serve --seq 8192":                              "",
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 0, run(strings.Fields("estimate llama-3-8b "+args), nil, &stdout, &stderr), stderr.String())
		if assert.Contains(t, stdout.String(), want, args); want == "" {
			assert.NotContains(t, stdout.String(), "was made for", args)
		}
	}
}

// A model that runs images whole has the same step whether texts or requests are counted.
func TestStepOfWholeImages(t *testing.T) {
	for args, want := range map[string]string{
		"gemma-4-31b --gpu a100": "2496", "gemma-4-31b --gpu h100": "8192", "gemma-4-e4b --gpu a100": "2048",
	} {
		e := estimateJSON(t, args+" --engine vllm --serve --seq 16384 --images 0")
		assert.Contains(t, strings.Join(e.Assumed, " "), "--max-batched-tokens "+want, args)
		assert.Contains(t, strings.Join(e.Report.Notes, " "), "prompts are processed "+want[:1]+","+want[1:]+" tokens", args)
	}
	given := estimateJSON(t, "gemma-4-31b --gpu a100 --engine vllm --serve --seq 16384 --max-batched-tokens 2048 --images 0")
	assert.Contains(t, strings.Join(given.Report.Notes, " "), "prompts are processed 2,048 tokens")
}

// Errors name flags, not the settings of packages.
func TestErrorsNameFlags(t *testing.T) {
	for args, want := range map[string]string{
		"flux.2-dev --quantize text_encoder=nf4": "estimate text_encoder: --quantize cannot name it: only the size of this part is known",
		"llama-3-8b --tp 3":                      "do not divide among 3 devices: want a --tp that divides both",
		"llama-3-8b --engine vllm --gpu h100 --max-model-len 8192 --kv fp8_ds_mla":                   "a --kv of fp8_ds_mla is not for this kind",
		"llama-3-8b --engine sglang --gpu h100 --max-model-len 8192 --kv q8_0":                       "--kv is \"q8_0\": want auto, bfloat16",
		"qwen3-next-80b-a3b --engine sglang --gpu h200 --tp 2 --max-model-len 8192 --draft-tokens 3": "--draft-tokens with recurrent states needs --max-requests",
		"gpt2 --train --pp 2000000": "sharding: --pp is 2000000: want 1 or more",
	} {
		var stdout, stderr bytes.Buffer
		require.NotEqual(t, 0, run(strings.Fields("estimate "+args), nil, &stdout, &stderr), args)
		assert.Contains(t, stderr.String(), want, args)
	}
}

// Flags have the engines' own names too.
func TestFlagsByEngineNames(t *testing.T) {
	ours := poolJSON(t, "llama-3-8b --engine vllm --gpu h100 --tp 2 --max-model-len 4096 --memory-fraction 0.8 --max-batched-tokens 2048 --max-requests 32 --kv fp8 --no-prefix-caching", 0)
	theirs := poolJSON(t, "llama-3-8b --engine vllm --gpu h100 --tensor-parallel-size 2 --max-model-len 4096 --gpu-memory-utilization 0.8 --max-num-batched-tokens 2048 --max-num-seqs 32 --kv-cache-dtype fp8 --no-enable-prefix-caching", 0)
	assert.Equal(t, ours, theirs)
	assert.Equal(t, 2048, ours.Pool.Step)
}

func TestPoolText(t *testing.T) {
	for args, want := range map[string][]string{
		"llama-3-8b --engine vllm --gpu h100 --memory-fraction 0.92": {
			"Meta-Llama-3-8B: 8,030,261,248 parameters, 15.0 GiB, served by vLLM 0.33.0 on H100 (79.1 GiB)", "55 requests of 8,192 tokens fit at once (at least 52); vLLM prints a cache of 453,152 tokens.",
			"profile run (estimate)", "tokens, as vLLM prints them", "Group of blocks: 32 layers, full; 16 tokens each, 512 for a request", "0.01 more of --memory-fraction holds",
			"Assumed, as not given: --max-model-len 8192; --max-requests 1024",
		},
		"qwen3-next-80b-a3b --engine sglang --gpu h200 --tp 2 --max-model-len 32768 --engine-version 0.5.20": {
			"SGLang 0.5.20 on 2 x H200", "tokens fit at once", "SGLang prints max_total_num_tokens=", "slots of recurrent states", "The rules are those of SGLang 0.5.23", "0.01 more of --memory-fraction holds",
		},
		"llama-3-8b --engine sglang --gpu 4090 --max-model-len 8192":                {"Not one request of 8,192 tokens fits", "One request of 8,192 tokens fits with --memory-fraction 0.7"},
		"gpt-oss-20b --engine sglang --gpu h100 --max-model-len 8192 --requests 20": {"20 requests of 8,192 tokens need pools of", "they fit with --memory-fraction"},
		"llama-3-8b --engine vllm --gpu h100 --max-model-len 8192 --requests 20":    {"20 requests of 8,192 tokens need a cache of 20.0 GiB: they fit with --memory-fraction 0.4"},
		"llama-3-8b --engine vllm --gpu h100 --max-model-len 8192 --requests 500":   {"500 requests of 8,192 tokens need a cache of 500.0 GiB, which no fraction leaves", "do not fit, whatever the fraction: the longest of which so many fit have"},
		"llama-3-8b --engine vllm --gpu 3090 --max-model-len 32768 --max-requests 1 --memory-fraction 0.7": {
			"Not one request of 32,768 tokens fits", "the longest that fits has", "One request of 32,768 tokens fits with --memory-fraction 0.8",
		},
	} {
		var stdout, stderr bytes.Buffer
		run(strings.Fields("estimate "+args), nil, &stdout, &stderr)
		for _, text := range want {
			assert.Contains(t, stdout.String()+stderr.String(), text, args)
		}
	}
}

func TestPoolFlags(t *testing.T) {
	for args, want := range map[string]string{
		"llama-3-8b --max-model-len 8192 --gpu h100":                                           "--max-model-len needs --engine sglang or --engine vllm",
		"llama-3-8b --engine llama.cpp --requests 3 --gpu h100":                                "--requests needs --engine sglang or --engine vllm",
		"llama-3-8b --engine vllm --enforce-eager --gpu h100":                                  "--enforce-eager is about a server's cache: give --max-model-len too",
		"llama-3-8b --engine vllm --max-model-len 8192":                                        "give --gpu, such as h100",
		"llama-3-8b --engine vllm --max-model-len 0 --gpu h100":                                "--max-model-len 0: want 1 to",
		"llama-3-8b --engine vllm --memory-fraction 92 --gpu h100":                             "--memory-fraction 92: want more than 0, and at most 1",
		"llama-3-8b --engine vllm --kv-cache-memory 1GiB --requests 2 --gpu h100":              "--kv-cache-memory is the size of the cache",
		"llama-3-8b --engine vllm --max-model-len 8192 --gpu h100 --fits 80GiB --max-batch":    "leave other searches",
		"llama-3-8b --engine vllm --max-model-len 8192 --gpu h100 --kv q8_0":                   `--kv is "q8_0"`,
		"qwen3-next-80b-a3b --engine vllm --max-model-len 8192 --gpu h100 --state-dtype int8":  "--state-dtype int8: want one of float32, bfloat16, float16",
		"resnet50 --engine vllm --max-model-len 8192 --gpu h100":                               "takes no text",
		"llama-3-8b --engine vllm --max-model-len 8192 --gpu h100 --tp 2 --requests 999999999": "want 1 to",
	} {
		var stdout, stderr bytes.Buffer
		assert.Equal(t, cli.ExitUsage, run(strings.Fields("estimate "+args), nil, &stdout, &stderr), args)
		assert.Contains(t, stderr.String(), want, args)
	}
}

// The layer that drafts has weights that are not counted: no request is certain to fit, with no fraction.
func TestPoolOfDrafts(t *testing.T) {
	for _, engine := range []string{"vllm", "sglang"} {
		args := "llama-3-8b --gpu h100 --max-model-len 8192 --engine " + engine
		plain, drafting := poolJSON(t, args, 0), poolJSON(t, args+" --draft-tokens 3", 0)
		assert.Positive(t, plain.Pool.Lower.Requests)
		assert.Zero(t, drafting.Pool.Lower.Requests)
		assert.Positive(t, drafting.Pool.Upper.Requests)
		assert.Nil(t, poolJSON(t, args+" --draft-tokens 3 --requests 2", 0).Pool.Asked.FractionUpper)
		assert.Positive(t, poolJSON(t, args+" --draft-tokens 3 --kv-cache-memory 20GiB", 0).Pool.Lower.Requests)

		var stdout, stderr bytes.Buffer
		require.Equal(t, 0, run(strings.Fields("estimate "+args+" --draft-tokens 3"), nil, &stdout, &stderr), stderr.String())
		assert.Contains(t, stdout.String(), "fit at once, or none")
		assert.Contains(t, stdout.String(), "What the layer that drafts weighs is not counted")
		assert.Regexp(t, `weights +│ +15.0 GiB │ +15.0 GiB │ +unknown`, stdout.String())
	}
}
