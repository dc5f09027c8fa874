package estimating

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
)

// run runs a command of this room.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return cli.Run(args, stdin, stdout, stderr, cli.Command{Name: "estimate", New: Command})
}

// estimateJSON runs the command and returns what it prints with --json.
func estimateJSON(t *testing.T, args string) estimated {
	t.Helper()
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(strings.Fields("estimate --json "+args), nil, &stdout, &stderr), stderr.String())
	var e estimated
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &e))
	return e
}

// Each way of training changes the values as it should.
func TestEstimateWaysOfTraining(t *testing.T) {
	const base = "gpt2 --train --batch 4 --seq 64 --optimizer adamw --dtype float32 "
	usual := estimateJSON(t, base)
	assert.Zero(t, usual.Host)
	adam := usual.Report.Training.Optimizer
	for flags, check := range map[string]func(t *testing.T, e estimated){
		"--optimizer lion": func(t *testing.T, e estimated) { assert.Equal(t, adam/2, e.Report.Training.Optimizer) },
		"--optimizer muon": func(t *testing.T, e estimated) {
			assert.Greater(t, e.Report.Training.Optimizer, adam/2)
			assert.Less(t, e.Report.Training.Optimizer, adam)
		},
		"--optimizer-in-backward": func(t *testing.T, e estimated) { assert.Less(t, e.Reserved, usual.Reserved) },
		"--offload optimizer": func(t *testing.T, e estimated) {
			assert.Zero(t, e.Report.Training.Optimizer)
			assert.Greater(t, e.Host, adam)
		},
		"--offload paged": func(t *testing.T, e estimated) {
			assert.Zero(t, e.Report.Training.Optimizer)
			assert.Equal(t, adam, e.Host)
			assert.Less(t, e.Reserved, usual.Reserved)
		},
		"--offload parameters":   func(t *testing.T, e estimated) { assert.Zero(t, e.Report.Training.Weights) },
		"--optimizer-form fused": func(t *testing.T, e estimated) { assert.Less(t, e.Peak, usual.Peak) },
		"--zero-grad kept":       func(t *testing.T, e estimated) { assert.GreaterOrEqual(t, e.Reserved, usual.Reserved) },
		"--transformers 4.45": func(t *testing.T, e estimated) {
			assert.Less(t, e.Report.Retained, usual.Report.Retained, "each text's last token has no loss")
		},
		"--pytorch 1.10":           func(t *testing.T, e estimated) { assert.NotEqual(t, usual.Peak, e.Peak) },
		"--attention eager":        func(t *testing.T, e estimated) { assert.Greater(t, e.Report.Retained, usual.Report.Retained) },
		"--attention sdpa":         func(t *testing.T, e estimated) { assert.Equal(t, usual.Report.Training, e.Report.Training) },
		"--hold-output with-cache": func(t *testing.T, e estimated) { assert.Greater(t, e.Peak, usual.Peak) },
		"--hold-output dropped":    func(t *testing.T, e estimated) { assert.Less(t, e.Peak, usual.Peak) },
		"--gradients float16":      func(t *testing.T, e estimated) { assert.Less(t, e.Report.Gradients, usual.Report.Gradients) },
		"--freeze transformer.*":   func(t *testing.T, e estimated) { assert.Less(t, e.Report.Trained.Count, usual.Report.Trained.Count/2) },
		"--freeze *.h.*":           func(t *testing.T, e estimated) { assert.Less(t, e.Report.Training.Optimizer, adam/2) },
		"--pp 4 --accumulate 8": func(t *testing.T, e estimated) {
			assert.Less(t, e.Report.Training.Weights, usual.Report.Training.Weights/2)
		},
		"--checkpoint blocks":  func(t *testing.T, e estimated) { assert.Less(t, e.Report.Retained, usual.Report.Retained/2) },
		"--weight-decay=false": func(t *testing.T, e estimated) { assert.Equal(t, usual.Report.Training, e.Report.Training) },
		"--cuda-loading lazy":  func(t *testing.T, e estimated) { assert.Less(t, e.Needs, usual.Needs+1) },
		"--dtype bf16 --master-weights": func(t *testing.T, e estimated) {
			assert.Equal(t, 2*e.Report.Training.Weights, e.Report.Training.Master)
		},
		"--lora 8 --lora-targets all-linear --quantize int8 --lora-dtype bf16 --lora-dropout 0.1": func(t *testing.T, e estimated) {
			assert.Less(t, e.Report.Training.Weights, usual.Report.Training.Weights/2)
		},
		"--checkpoint blocks --checkpoint-saves half": func(t *testing.T, e estimated) {
			assert.Greater(t, e.Report.Retained, usual.Report.Retained/10)
			assert.Less(t, e.Report.Retained, usual.Report.Retained/2)
		},
		"--accumulate 4":     func(t *testing.T, e estimated) { assert.GreaterOrEqual(t, e.Peak, usual.Peak) },
		"--checkpoint *.h.*": func(t *testing.T, e estimated) { assert.Less(t, e.Report.Retained, usual.Report.Retained) },
		"--autocast bf16":    func(t *testing.T, e estimated) { assert.NotEqual(t, usual.Report.Retained, e.Report.Retained) },
		"--replicas 8 --zero 3": func(t *testing.T, e estimated) {
			assert.Less(t, e.Report.Training.Weights, usual.Report.Training.Weights/7)
		},
		"--optimizer adam8bit": func(t *testing.T, e estimated) { assert.Less(t, e.Report.Training.Optimizer, adam/3) },
		"--lora 8 --qlora --lora-targets c_attn,c_proj": func(t *testing.T, e estimated) {
			assert.Less(t, e.Report.Training.Weights, usual.Report.Training.Weights)
			assert.Less(t, e.Report.Training.Optimizer, adam/50)
		},
	} {
		t.Run(flags, func(t *testing.T) {
			e := estimateJSON(t, base+flags)
			check(t, e)
			assert.GreaterOrEqual(t, e.Needs, e.Peak)
			assert.GreaterOrEqual(t, e.DeviceUpper, e.Device)
			assert.Greater(t, e.Device, e.Reserved)
			assert.Positive(t, e.Reserved)
		})
	}
}

// The settings of training choose it, and those that have no effect are said to.
func TestEstimateSettlesWhatIsAsked(t *testing.T) {
	const all = "llama-3-8b --seq 256 --lora 16 --qlora --autocast bf16 --optimizer adam8bit --optimizer-form fused --checkpoint layers.* --accumulate 4 --kv q8_0 --zero 3 --tp 8"
	e := estimateJSON(t, all)
	assert.Equal(t, "train", e.Mode)
	assert.Contains(t, e.Report.Notes, "--kv has no effect without --serve")
	assert.Contains(t, e.Report.Notes, "--zero has no effect on one replica, which has nothing to share: give --replicas 2 or more")
	shared := estimateJSON(t, all+" --replicas 8")
	assert.Less(t, shared.Report.Training.Weights, e.Report.Training.Weights/7)
	assert.Equal(t, e.Report.Retained, shared.Report.Retained)

	served := estimateJSON(t, "llama-3-8b --serve --seq 256 --optimizer lion")
	assert.Equal(t, "serve", served.Mode)
	assert.Equal(t, 256, served.Context)
	assert.Contains(t, served.Report.Notes, "--optimizer has no effect on serving")
	assert.EqualValues(t, 4*3*448*448, estimateJSON(t, "resnet50 --image 448").Report.Inference.Input)
	assert.Zero(t, estimateJSON(t, "resnet50 --cpu").Device)
}

// Not all models have numbered layers: the error shows what the paths are like.
func TestEstimateCheckpointBlocks(t *testing.T) {
	var stdout, stderr bytes.Buffer
	assert.Equal(t, cli.ExitUsage, run(strings.Fields("estimate densenet121 --checkpoint blocks"), nil, &stdout, &stderr))
	assert.Contains(t, stderr.String(), "--checkpoint blocks: the layers have no numbers: give a pattern for paths such as features.denseblock")
	estimateJSON(t, "densenet121 --checkpoint features.denseblock?.denselayer*")
	estimateJSON(t, "resnet50 --checkpoint blocks")
}

// Where nobody says which layers get adapters, they are those that PEFT takes.
func TestEstimateUsualTargetsOfLoRA(t *testing.T) {
	for model, trained := range map[string]int64{
		"gpt2":              12 * 8 * (768 + 3*768),
		"bert-base-uncased": 12 * 2 * 8 * (768 + 768),
		"llama-2-7b":        32 * 2 * 8 * (4096 + 4096),
		"vit-b-16":          12 * 2 * 8 * (768 + 768),
	} {
		assert.Equal(t, trained, estimateJSON(t, model+" --lora 8").Report.Trained.Count, model)
	}
	dir := t.TempDir()
	for name, said := range map[string]string{
		"qwen2": "adapted: q_proj, v_proj, as PEFT 0.21.2 does by default for this type",
		"olmo2": "adapted: q_proj, v_proj, which is assumed: PEFT 0.21.2 has no default for this type, and --lora-targets names others",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type": "`+name+`", "hidden_size": 64, "intermediate_size": 96,
			"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 100}`), 0o600))
		assert.Contains(t, estimateJSON(t, dir+" --lora 8").Report.Notes, said)
	}
	const untyped = "config.json gives no dtype: the weights are float32 unless --dtype gives another type"
	assert.Contains(t, estimateJSON(t, dir).Report.Notes, untyped)
	assert.NotContains(t, estimateJSON(t, dir+" --dtype bf16").Report.Notes, untyped)
	var stderr bytes.Buffer
	assert.Equal(t, cli.ExitFailed, run([]string{"estimate", "deepseek-v3", "--lora", "8"}, nil, io.Discard, &stderr))
	assert.Contains(t, stderr.String(), "PEFT 0.21.2 has no default for this type, nor has the model q_proj and v_proj: --lora-targets names layers, such as q_a_proj or all-linear")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"_class_name": "FluxTransformer2DModel",
		"num_layers": 1, "num_single_layers": 1, "num_attention_heads": 2, "attention_head_dim": 64}`), 0o600))
	const wide = 2 * 64
	assert.EqualValues(t, 8*(wide+wide)*(4+3), estimateJSON(t, dir+" --lora 8").Report.Trained.Count, "a single block has no to_out")
	assert.Equal(t, alloc.Shape{1, 32 * 32, 64}, estimateJSON(t, dir+" --image 512").Report.Inputs[0])
}

func TestEstimateLargestThatFits(t *testing.T) {
	const budget = " --fits 24GiB --gpu ada"
	train := estimateJSON(t, "resnet50 --train --max-batch"+budget)
	assert.Equal(t, train.Batch, train.Report.Inputs[0][0])
	assert.Greater(t, train.Batch, 100)
	assert.LessOrEqual(t, train.Needs, train.Budget)
	more := estimateJSON(t, fmt.Sprintf("resnet50 --train --batch %d --gpu ada", train.Batch+1))
	assert.Greater(t, more.Needs, train.Budget)

	const shared = "gpt2-xl --zero 3 --seq 256 --fits 12GiB --gpu ada --cuda-loading lazy "
	fewest := estimateJSON(t, shared+"--min-replicas")
	assert.Greater(t, fewest.Replicas, 2)
	assert.True(t, *fewest.Fits)
	assert.Equal(t, fewest.Needs, estimateJSON(t, fmt.Sprintf("%s--replicas %d", shared, fewest.Replicas)).Needs)
	assert.Greater(t, estimateJSON(t, fmt.Sprintf("gpt2-xl --zero 3 --seq 256 --gpu ada --cuda-loading lazy --replicas %d", fewest.Replicas-1)).Needs, fewest.Budget)

	serve := estimateJSON(t, "llama-3-8b --serve --prefill-chunk 512 --kv fp8 --max-context-length"+budget)
	assert.Greater(t, serve.Context, 32768)
	assert.LessOrEqual(t, serve.Needs, serve.Budget)
	assert.Equal(t, alloc.Bytes(serve.Context)*65536, serve.Report.Inference.Cache, "32 layers of 8 heads of 128, a byte each")

	cells := estimateJSON(t, "llama-3-8b --serve --engine llama.cpp --flash-attention --kv fp8 --max-context-length"+budget)
	assert.Zero(t, cells.Context%256)
	assert.Greater(t, cells.Context, serve.Context)

	var stdout, stderr bytes.Buffer
	assert.Equal(t, cli.ExitUnfit, run(strings.Fields("estimate llama-3-8b --serve --max-batch --fits 4GiB"), nil, &stdout, &stderr))
	assert.Equal(t, cli.ExitUnfit, run(strings.Fields("estimate gpt2-xl --zero 3 --min-replicas --fits 2GiB"), nil, &stdout, &stderr))
	assert.Contains(t, stdout.String(), "It fits with no number of replicas")
}

func TestEstimateFlagsThatMakeNoSense(t *testing.T) {
	for flags, want := range map[string]string{
		"--offload gradients":        "want one of optimizer, parameters, paged",
		"--zero-grad never":          "want one of first, backward, kept",
		"--pytorch two":              "want a version such as 2.4",
		"--pytorch 2":                "want a version such as 2.4",
		"--transformers new":         "want a version such as 4.45",
		"--bitsandbytes 0":           "want a version such as 0.43.2",
		"--dtype int4":               "--lora N --qlora",
		"--dtype bool":               "does not train weights of bool",
		"--engine llama.cpp":         "llama.cpp serves models: leave --train out",
		"--serve":                    "choose --train or --serve",
		"--max-batch":                "--max-batch needs --fits",
		"--zero 9":                   "--zero 9: want 1, 2 or 3",
		"--min-replicas --fits 1GiB": "--min-replicas needs --fits, --train and --zero",
		"--max-gpu-layers":           "--max-gpu-layers needs --fits",
		"--max-batch --max-gpu-layers --fits 1GiB":      "choose one of --max-batch, --max-context-length",
		"--attention fast":                              "want one of sdpa, flash, eager",
		"--hold-output long":                            "want one of held, in-pass, dropped",
		"--cuda-loading soon":                           "want one of lazy, eager",
		"--lora 8 --lora-targets c_attn --quantize nf8": "want one of nf4, nf4-double, int8, gptq",
		"--lora-dtype bf16":                             "need the rank of the adapters",
		"--lora 8 --lora-targets q_proj":                "their names are c_attn, c_proj, c_fc",
		"--tensor-split 3,x":                            "--tensor-split 3,x: want numbers such as 3,1",
		"--lora 0":                                      "--lora 0: want 1 or more",
		"--gradients int8":                              "--gradients int8: want one of float32",
		"--master-weights":                              "--master-weights needs --dtype",
		"--freeze layers":                               "Frozen: no layer's path matches",
		"--image 320":                                   "reads those of one size, or none",
		"--max-context-length --fits 1GiB":              "--max-context-length needs --fits and --serve",
		"--best-quantization":                           "needs --fits",
		"--optimizer adagrad":                           "lion, muon",
		"--optimizer-in-backward --accumulate 2":        "cannot add up 2 micro-batches",
	} {
		var stdout, stderr bytes.Buffer
		assert.NotZero(t, run(strings.Fields("estimate gpt2 --train "+flags), nil, &stdout, &stderr), flags)
		assert.Contains(t, stderr.String(), want)
		assert.Empty(t, stdout.String())
	}
}

// Of a family that is not known a config.json alone tells the keys and values, and nothing that --fits could judge.
func TestEstimateConfigOfAnUnknownFamily(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(config, []byte(`{"model_type": "rwkv9", "hidden_size": 4096,
		"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}`), 0o600))
	const serve = " --serve --batch 2 --seq 1024"
	for _, c := range []struct {
		flags          string
		code           int
		stdout, stderr string
	}{
		{"", cli.ExitFailed, "", fmt.Sprintf(`"rwkv9" is none of the %d families that are known`, len(checkpoint.Families()))},
		{serve, 0, "keys and values of 2 x 1,024 tokens take 256.0 MiB, by the config's own numbers", ""},
		{serve + " --fits 24GiB", cli.ExitUnknown, "put the weights beside the config.json", "whether it fits is not known without its weights"},
		{serve + " --fits 24GiB --weights-only", cli.ExitUnknown, "", "has no weights to judge"},
		{serve + " --fits 100MiB", cli.ExitUnfit, "", "keys and values alone may take 256.0 MiB"},
		{serve + " --fits 24GiB --json", cli.ExitUnknown, `"cache_bytes":268435456,"unknown":["weights","activations"],"budget_bytes":25769803776,"fits":null}`, ""},
	} {
		var stdout, stderr bytes.Buffer
		assert.Equal(t, c.code, run(append([]string{"estimate", config}, strings.Fields(c.flags)...), nil, &stdout, &stderr), c.flags)
		assert.Contains(t, stdout.String(), c.stdout, c.flags)
		assert.Contains(t, stderr.String(), c.stderr, c.flags)
	}
	var help, none bytes.Buffer
	require.Zero(t, run([]string{"help", "estimate-models"}, nil, &help, &none))
	for _, family := range checkpoint.Families() {
		assert.Contains(t, help.String(), family)
	}
}

// What scripts read keeps its keys, each with its unit.
func TestEstimateJSONKeys(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"estimate", "gpt2", "--json", "--fits", "24GiB"}, nil, &stdout, &stderr), stderr.String())
	var estimated map[string]any
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &estimated))
	assert.ElementsMatch(t, []string{"schema", "mode", "peak_bytes", "peak_upper_bytes", "allocated_bytes", "allocated_upper_bytes", "reserved_bytes", "reserved_upper_bytes", "device_bytes", "device_upper_bytes", "needed_upper_bytes", "host_bytes", "budget_bytes", "fits", "assumed", "report"},
		slices.Collect(maps.Keys(estimated)))
	for _, key := range []string{"name", "inputs", "params", "buffers", "inference", "training", "layers"} {
		assert.Contains(t, estimated["report"], key)
	}
}

// A prompt runs whole, with the logits of its last token, unless a server cuts it or transformers is older.
func TestEstimatePrompts(t *testing.T) {
	const base = "llama-3-8b --engine transformers --serve --seq 4096 --gpu ampere"
	transient := func(flags string) alloc.Bytes { return estimateJSON(t, base+flags).Report.Inference.Transient }
	whole := estimateJSON(t, base)
	assert.Equal(t, alloc.Shape{1, 4096}, whole.Report.Inputs[0])
	assert.Contains(t, strings.Join(whole.Report.Notes, "\n"), "prompts are processed whole, 4,096 tokens at once")
	cut := estimateJSON(t, base+" --prefill-chunk 512")
	assert.Contains(t, cut.Report.Notes, "prompts are processed 512 tokens at a time")
	assert.Less(t, cut.Report.Inference.Transient, whole.Report.Inference.Transient/4)
	const logits = 4096 * 128256 // in bfloat16, and before 4.46 in float32 too
	assert.Greater(t, transient(" --transformers 4.38"), alloc.Bytes(6*logits))
	assert.Less(t, transient(""), alloc.Bytes(logits))
}

// octocoder with a prompt of 6,300 tokens and attention that holds the scores: 38,572 MiB were measured
// (huggingface/transformers, llm_tutorial_optimization.md at 008f5c8c), with transformers of 2023.
func TestEstimateLongPrompt(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(config, []byte(`{"model_type": "gpt_bigcode", "architectures": ["GPTBigCodeForCausalLM"], "n_embd": 6144, "n_head": 48, "n_inner": 24576, "n_layer": 40,
		"n_positions": 8192, "vocab_size": 49152, "multi_query": true, "activation_function": "gelu_pytorch_tanh", "torch_dtype": "bfloat16"}`), 0o600))
	e := estimateJSON(t, config+" --serve --engine transformers --seq 6300 --attention eager --transformers 4.33 --gpu ampere")
	assert.Less(t, 38572*alloc.MiB, e.AllocatedUpper)
}

// Each bound in the text is that of the value above it, and what was measured of such values is below it.
func TestEstimateBoundsOfWhatIsPrinted(t *testing.T) {
	for _, flags := range []string{"gpt2 --train", "gpt2 --serve", "gpt2 --train --cpu", "resnet50", "llama-2-7b --lora 8 --qlora --seq 512"} {
		e := estimateJSON(t, flags)
		var stdout, stderr bytes.Buffer
		require.Zero(t, run(append([]string{"estimate", "--detail"}, strings.Fields(flags)...), nil, &stdout, &stderr), stderr.String())
		var bounds []string
		last := ""
		for line := range strings.Lines(stdout.String()) {
			cells := strings.Split(line, "│")
			if len(cells) < 3 {
				continue
			}
			name, size := strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])
			switch name {
			case "at most":
				bounds = append(bounds, last+" "+size)
			case "at least":
				bounds = append(bounds, last+" from "+size)
			default:
				last = name
			}
		}
		f := e.memory().Footprint
		want := []string{fmt.Sprintf("peak %v", e.Upper)}
		if f.Device.Bytes > 0 {
			want = []string{
				fmt.Sprintf("allocated: the peak in blocks %v", f.Allocated.Upper), fmt.Sprintf("reserved by the allocator %v", f.Reserved.Upper),
				fmt.Sprintf("nvidia-smi shows from %v", f.Device.Lower), fmt.Sprintf("nvidia-smi shows %v", f.Device.Upper), fmt.Sprintf("smallest device that it runs on %v", e.Needs),
			}
		}
		assert.Equal(t, want, bounds, flags)
		assert.LessOrEqual(t, f.Allocated.Upper, e.Upper)
		assert.LessOrEqual(t, e.Allocated, e.AllocatedUpper)
		assert.LessOrEqual(t, e.Reserved, e.ReservedUpper)
	}
}

// JSON says of the context what the text says.
func TestEstimateContextIsNotedInJSON(t *testing.T) {
	notes := func(flags string) string { return fmt.Sprint(estimateJSON(t, flags).memory().Uncertain) }
	assert.Contains(t, notes("gpt2"), "it takes 256.0 MiB to 1.8 GiB, by the GPU and by when CUDA loads its kernels: --gpu and --cuda-loading say which")
	assert.Contains(t, notes("gpt2 --gpu volta"), "--cuda-loading says which")
	assert.NotContains(t, notes("gpt2 --gpu ada --cuda-loading lazy"), "says which")
}

// What is refused says why, and names the flags that were given.
func TestEstimateRefusals(t *testing.T) {
	file := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	const whisper = `{"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536,
		"decoder_layers": 4, "decoder_attention_heads": 6, "decoder_ffn_dim": 1536, "vocab_size": 51865, "num_mel_bins": 80, "max_source_positions": 1500, "max_target_positions": 448}`
	assert.Equal(t, 448, estimateJSON(t, file("config.json", whisper)+" --serve").Context)
	gptj := `{"model_type": "gpt_of_others", "n_layer": 28, "n_head": 16, "n_embd": 4096}`
	pipeline := filepath.Dir(file("model_index.json", `{"transformer": ["diffusers", "UNet2DConditionModel"], "text_encoder": ["transformers", "CLIPTextModel"]}`))
	require.NoError(t, os.Mkdir(filepath.Join(pipeline, "transformer"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(pipeline, "transformer", "config.json"), []byte(`{"_class_name": "UNet2DConditionModel"}`), 0o600))
	for args, want := range map[string]string{
		file("config.json", whisper) + " --serve --seq 500":                                                        "--seq 500: checkpoint: key/value cache of 500 tokens: the model has 448 positions",
		file("config.json", `{"model_type": "wav2vec9", "conv_kernel": [10, 3], "hidden_size": 768}`) + " --serve": `"wav2vec9" is none of the`,
		file("config.json", `{"model_type": "wav2vec9"}`) + " --serve":                                             "nor are the sizes of its keys and values known",
		pipeline + " --batch 2": "part text_encoder",
	} {
		var stdout, stderr bytes.Buffer
		code := run(append([]string{"estimate"}, strings.Fields(args)...), nil, &stdout, &stderr)
		if want == "part text_encoder" {
			assert.NotContains(t, stderr.String(), "--serve", args)
			continue
		}
		assert.NotZero(t, code, args)
		assert.Contains(t, stderr.String(), want, args)
	}
	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"estimate", file("config.json", gptj), "--serve"}, nil, &stdout, &stderr), stderr.String())
	assert.Contains(t, stdout.String(), "keys and values of 1 x 2,048 tokens (assumed) take 896.0 MiB")
}

// An --image of the model's own size changes nothing.
func TestEstimateImageOfItsOwnSize(t *testing.T) {
	assert.Equal(t, estimateJSON(t, "vit-b-16").Peak, estimateJSON(t, "vit-b-16 --image 224").Peak)
	assert.Equal(t, estimateJSON(t, "dinov2-base").Peak, estimateJSON(t, "dinov2-base --image 518").Peak)
}
