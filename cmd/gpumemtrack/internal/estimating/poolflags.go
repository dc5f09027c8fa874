package estimating

import (
	"cmp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
)

// poolOptions ask how a server divides the memory of a GPU: how many requests fit. Giving one of onlyPool asks.
type poolOptions struct {
	fraction float64     // of the GPU's memory
	tokens   int         // of a request, at most
	requests int         // that should fit
	cache    alloc.Bytes // in place of the fraction
	most     int         // requests that the server runs at once
	block    int
	prefix   bool // requests share the cache of the same beginning; noPrefix is the opposite, and some engines' default
	noPrefix bool
	eager    bool
	drafted  int
	kvType   string // --kv, as the engine takes it
	state    string // --state-dtype
}

func (o *poolOptions) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Float64Var(&o.fraction, "memory-fraction", 0, "with --engine: `FRACTION` of the GPU that the server takes, vLLM's --gpu-memory-utilization, SGLang's --mem-fraction-static (default: the engine's)")
	flags.IntVar(&o.tokens, "max-model-len", 0, "with --engine: the most tokens `N` of a request, prompt and answer together (default: the model's)")
	flags.IntVar(&o.requests, "requests", 0, "with --engine: find the fraction for `N` requests of --max-model-len tokens at once")
	flags.Var(cli.SizeFlag(&o.cache), "kv-cache-memory", "with --engine: `SIZE` of the cache, in place of what the fraction leaves")
	flags.IntVar(&o.most, "max-requests", 0, "with --engine: the most requests `N` that the server runs at once, vLLM's --max-num-seqs, SGLang's --max-running-requests (default: the engine's)")
	flags.IntVar(&o.block, "block-size", 0, "with --engine: `N` tokens in a block of the cache, SGLang's --page-size (default: the attention backend's)")
	flags.BoolVar(&o.prefix, "prefix-caching", true, "with --engine: requests share the cache of the same beginning (default: the engine's)")
	flags.BoolVar(&o.noPrefix, "no-prefix-caching", false, "with --engine: requests share no part of the cache")
	flags.BoolVar(&o.eager, "enforce-eager", false, "with --engine: no CUDA graphs")
	flags.IntVar(&o.drafted, "draft-tokens", 0, "with --engine: `N` tokens are drafted at once by one layer more, as in multi-token prediction")
	flags.StringVar(&o.state, "state-dtype", "", "with --engine: `TYPE` of recurrent states, vLLM's --mamba-ssm-cache-dtype, SGLang's --mamba-ssm-dtype (default: the model's)")
}

// stateType returns the type that --state-dtype names, and 0 for that of the model.
func (o poolOptions) stateType() (alloc.DType, error) {
	if o.state == "" || o.state == "auto" {
		return 0, nil
	}
	d, err := parseDType(o.state)
	if err != nil || d != alloc.Float32 && d != alloc.BFloat16 && d != alloc.Float16 {
		return 0, cli.UsageError("estimate: --state-dtype %s: want one of %s", o.state, strings.Join(usualTypes, ", "))
	}
	return d, nil
}

// engineNames are what vLLM, SGLang and llama.cpp call flags of ours; they are taken too.
var engineNames = map[string]string{
	"gpu-memory-utilization": "memory-fraction", "mem-fraction-static": "memory-fraction", "context-length": "max-model-len",
	"max-num-batched-tokens": "max-batched-tokens", "chunked-prefill-size": "max-batched-tokens", "max-num-seqs": "max-requests", "max-running-requests": "max-requests",
	"kv-cache-memory-bytes": "kv-cache-memory", "kv-cache-dtype": "kv", "tensor-parallel-size": "tp", "pipeline-parallel-size": "pp", "no-enable-prefix-caching": "no-prefix-caching",
	"enable-prefix-caching": "prefix-caching", "disable-radix-cache": "no-prefix-caching",
	"num-speculative-tokens": "draft-tokens", "tp-size": "tp", "pp-size": "pp",
	"mamba-ssm-cache-dtype": "state-dtype", "mamba-ssm-dtype": "state-dtype",

	"ctx-size": "seq", "parallel": "slots", "n-gpu-layers": "gpu-layers", "ubatch-size": "ubatch", "flash-attn": "flash-attention",
}

// namedElsewhere maps flags of engines and trainers to what is typed here instead.
var namedElsewhere = map[string]string{
	"c": "--seq, the tokens of --ctx-size", "np": "--slots", "ngl": "--gpu-layers", "fa": "--flash-attention", "ctk": cacheTypes, "ctv": cacheTypes,
	"cache-type-k": cacheTypes, "cache-type-v": cacheTypes,
	"per-device-train-batch-size": "--batch", "gradient-accumulation-steps": "--accumulate", "gradient-checkpointing": "--checkpoint blocks",
	"max-length": "--seq", "max-seq-length": "--seq", "max-seq-len": "--seq", "load-in-4bit": "--quantize nf4", "load-in-8bit": "--quantize int8",
}

const cacheTypes = "--kv, as in --kv q8_0 or --kv k=q8_0,v=f16"

// byEngineName returns our name of a flag.
func byEngineName(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	return pflag.NormalizedName(cmp.Or(engineNames[name], name))
}

// onlyPool lists the flags that ask for the pool, and ofPool those that say more about it.
var (
	onlyPool = []string{"memory-fraction", "max-model-len", "requests", "kv-cache-memory"}
	ofPool   = []string{"max-requests", "block-size", "prefix-caching", "no-prefix-caching", "enforce-eager", "draft-tokens", "state-dtype"}
)

// poolHelp explains them.
const poolHelp = `With --engine vllm or sglang and one of --max-model-len, --memory-fraction,
--requests and --kv-cache-memory the answer is how many requests the server
holds at once, by the engine's own rules: the memory that is left for its cache
on the GPU of --gpu, the blocks that it cuts that into, and the tokens that it
prints. Flags have the engine's own names too, such as
--gpu-memory-utilization.`
