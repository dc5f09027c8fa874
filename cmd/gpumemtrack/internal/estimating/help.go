package estimating

import (
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
)

const help = `Estimate the GPU memory that a model needs, by its name (estimate list prints
those that are known) or from its files: safetensors, GGUF, config.json, .pt,
diffusers' model_index.json, or a folder of them. Nothing runs.`

// addTopics adds the help pages for what most people never need.
func addTopics(a *cli.App, cmd *cobra.Command) {
	text := func(t string) func() string { return func() string { return t } }
	onOtherPages := []string{"optimizer", "min-replicas"}
	training := slices.DeleteFunc(slices.Clone(onlyTraining), func(flag string) bool { return slices.Contains(onOtherPages, flag) })
	a.AddTopics(cmd,
		cli.Topic{Name: "training", Title: "how a model is trained", Text: text("Each of these flags chooses training, as --train does."), Flags: training},
		cli.Topic{Name: "images", Title: "images and sounds in the text", Text: text(imagesHelp), Flags: []string{"images", "image-size", "sounds", "seconds"}},
		cli.Topic{Name: "diffusion", Title: "pipelines that make images and videos", Text: text(diffusionHelp), Flags: []string{"reference-images", "vae-slicing", "vae-tiling"}},
		cli.Topic{Name: "serving", Title: "serving, and how many requests fit", Text: text(poolHelp),
			Flags: slices.Concat([]string{"kv", "prefill-chunk", "max-batched-tokens"}, onlyPool, ofPool)},
		cli.Topic{Name: "engines", Title: "engines and their defaults", Text: engineDefaults, Flags: []string{"engine-version"}},
		cli.Topic{Name: "llama", Title: "llama.cpp", Flags: []string{"ubatch", "flash-attention", "slots", "kv-unified", "gpu-layers", "tensor-split", "mmproj", "draft-mtp", "draft-max", "model-draft"}},
		cli.Topic{Name: "fits", Title: "searches for what fits", Text: text("Each needs --fits, which compares the most that is promised, with the CUDA\ncontext; where only the weights are known its answer is no."),
			Flags: []string{"weights-only", "max-batch", "max-context-length", "max-gpu-layers", "min-replicas", "best-quantization"}},
		cli.Topic{Name: "machine", Title: "types, devices and versions", Text: knownGPUs, Flags: slices.Concat(ofMachine, []string{"max-file", "max-memory"})},
		cli.Topic{Name: "json", Title: "what --json prints", Text: text(jsonHelp)},
		cli.Topic{Name: "models", Title: "the known models and families", Text: families},
	)
}

func knownGPUs() string {
	return "GPUs that --gpu and --fits know, and generations that --gpu knows:\n" + wrapped(gpuNames())
}

// ofMachine lists the less common flags about where and with what a model runs.
var ofMachine = []string{
	"attention", "autoawq", "autocast", "bitsandbytes", "cpu", "cuda-loading", "expandable-segments", "experts", "offload", "pp", "pytorch", "quantize", "torchao", "tp", "transformers",
}

const imagesHelp = `Of a model that reads images or sounds with a text these flags let them run
through its towers. Their tokens are counted as the model's processor in
transformers counts them, and --seq counts them too. Without --images and
--sounds what a tower needs to run is not known, so that there is no upper
bound; --images 0 says that no text has any.`

const diffusionHelp = `Of a whole pipeline, such as sdxl, the answer is the higher of two peaks: that
of a step of the transformer or U-Net, and that of decoding. --image and
--frames say what it makes.`

const jsonHelp = `--json prints one object:
  schema              gpumemtrack.estimate/1
  mode                inference, serve or train
  peak_bytes          tensors at the peak
  peak_upper_bytes    the upper bound of that
  allocated_bytes     what torch.cuda.max_memory_allocated would return
  allocated_upper_bytes
                      the upper bound of that
  reserved_bytes      what PyTorch's allocator reserves
  reserved_upper_bytes
                      the upper bound of that
  device_bytes        what nvidia-smi would show
  device_upper_bytes  the upper bound of that
  needed_upper_bytes  what --fits compares
  host_bytes          what --offload and --gpu-layers leave in CPU memory
  budget_bytes, fits  with --fits: the size, and whether the model fits
  quantization        with --best-quantization: its name
  batch               with --max-batch: the largest batch
  context_length      with --serve: tokens of each sequence; with
                      --max-context-length the most that fit
  replicas            with --min-replicas: the fewest with which it fits
  gpu_layers          of llama.cpp: its layers on the GPU; with
                      --max-gpu-layers the most that fit
  images              with --images: images in each text
  image_tokens        tokens of each text that stand for them
  sounds              with --sounds: sounds in each text
  sound_tokens        tokens of each text that stand for them
  frames              of a model that makes videos: frames of each
  assumed             flags for what was assumed where none were given
  would_fit           with --fits, where it does not fit: changes with which
                      it would, the cheapest first
  nearest             where none would: those that come nearest
  measured            with --measured: the recorded run beside the estimate
  report              all details, as the fields of estimate.Report in Go
With --engine and --max-model-len, --requests, --memory-fraction or
--kv-cache-memory it prints schema, mode, name, assumed, notes, and
  pool                engine, release, gpu_bytes, memory_fraction,
                      max_model_len, max_batched_tokens; budget (how the memory
                      of the cache comes about), plan (blocks, groups, tokens,
                      requests) and the like at_least and at_most; with
                      --requests asked (the fraction, or the longest requests
                      that fit); too_small, if not even one request fits
Of a family that is not known, --serve with the config.json alone prints schema,
mode, name, cache_bytes (what its keys and values take) and unknown (the parts
whose size is not known).`

// families lists the families whose config.json can be read.
func families() string {
	return `gpumemtrack estimate list prints the models that are known by name.

Families of a config.json (model_type, or _class_name of diffusers); of others,
--serve tells the size of the keys and values alone:
` + wrapped(checkpoint.Families())
}

// wrapped lists names in lines of 78 columns.
func wrapped(names []string) string {
	lines := strings.Split(text.WrapSoft(strings.Join(names, ", "), 78), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n")
}
