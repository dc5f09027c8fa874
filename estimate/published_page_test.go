package estimate_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cases"
)

const publishedHead = `# How near an estimate comes

<!-- TestPublishedPage in estimate/published_page_test.go writes this page: go test ./estimate -run TestPublishedPage -update -->

    gpumemtrack estimate llama-3-8b --lora 16 --qlora --seq 4096 --fits 4090

This command says how much memory a model needs to be trained, to serve texts, or to run once. The model is a name or a file. It runs
with PyTorch and transformers, or with llama.cpp, on one GPU or several. [The command line](command-line.md#estimate) has the flags.

Nothing is run. The figures are computed from the shapes of the tensors, from what operations keep for the backward pass, and from the
rules of PyTorch's allocator. An answer has an estimate and bounds: what the run really takes should lie between the lower and the upper
bound, close to the estimate. ` + "`--fits`" + ` compares the upper bound.

This page says how well that works, by measurements that others published of runs on real GPUs.

## How near it comes

How far off will the estimate of your model be? First answers show it best. When somebody finds a new measurement, the estimator answers
before anybody corrects it, and this first answer is kept. [estimate-cases.csv](estimate-cases.csv) has each of them, with its command.

"Off" says how much more was measured than estimated. "Today" is the same after corrections.

`

const fittedHead = `
## How well known runs are explained

The estimator was corrected with these measurements. So they show how well it explains known runs, not how well it predicts new ones. All of
them lie between the lower and the upper bound.

`

const casesHead = `# How estimates were compared

<!-- TestPublishedPage in estimate/published_page_test.go writes this page: go test ./estimate -run TestPublishedPage -update -->

[estimate.md](estimate.md) says how near an estimate comes. This page says how that was found out, which runs are explained badly, and what
makes the bounds wide. [estimate-cases.csv](estimate-cases.csv) has a row for each measurement:

| column | what it has |
|---|---|
| figure | what was measured. ` + "`allocated`" + ` is torch.cuda.max_memory_allocated. ` + "`reserved`" + ` is max_memory_reserved, or what nvidia-smi showed without the CUDA context. ` + "`device`" + ` is all that nvidia-smi showed. Other figures were printed by an engine |
| grade | A: the setting is known exactly. B: one detail is assumed. C: no flag describes some part of the run, most often layers that the authors wrote themselves; the column ` + "`own`" + ` says what. D: the estimate is off by more than the limits below, and the column ` + "`note`" + ` says why |
| first_mib, today_mib, lower_mib, upper_mib | the first answer, if it was kept; the answer of today, with its bounds |
| command | the arguments of ` + "`gpumemtrack estimate`" + `, in the folder docs. A test runs them |

The test fails if a measurement lies outside the bounds. It also fails if the estimator was corrected with a measurement and is still off by
more than 5 % (grade A), 10 % (B) or 15 % (C). Rows of grade D are in no summary, but the test holds their bounds too.
`

// publishedKinds are the kinds of rows by which the estimator was corrected.
var publishedKinds = []string{"Training transformers", "Training adapters", "Training models of images and videos", "Models that make images", "Serving"}

const publishedYours = `
## A run of yours

Record two steps or more, from the program's start:

    torch.cuda.memory._record_memory_history()          # then train, then:
    torch.cuda.memory._dump_snapshot("snapshot.pickle")

Then print the estimate beside them:

    gpumemtrack estimate gpt2 --train --optimizer adamw --batch 8 --seq 1024 --measured snapshot.pickle

Please send us the comparison in an issue: the command, what it prints with ` + "`--json`" + `, the name of the GPU, and the versions of PyTorch and
transformers. It becomes a row of first answers. We do not need the recording itself.
`

const publishedLacking = `
## What it does not know

- **Models that few people measured.** For some models, few or no measurements on GPUs are known: mixtures of experts without adapters,
  models of images and texts (CLIP, SigLIP), latent attention (DeepSeek), recurrent layers (Mamba, Qwen3-Next, LSTM), encoders with
  decoders (T5, Whisper), and Swin's windows in low precision. A note says so, and the upper bound is at least 20 % above the estimate.
- **Memory outside the model.** The estimate leaves out most workspaces of cuDNN, communication buffers, the streams of FSDP, and what CUDA
  graphs and compilers keep.
- **Other software.** DeepSpeed, Megatron and serving engines do some things in another way than PyTorch with transformers.
- **What you do not say.** If you leave a setting open, the upper bound allows for the worst case. A note names the flag and the amount.

[estimate-cases.md](estimate-cases.md) has the details: how the runs were compared, and which ones are explained badly.
`

const peaksOfTensors = `
## Peaks on the CPU

The bands of the tensors' peaks come from training steps that were measured on the CPU, with two threads (estimate/testdata/torch and
estimate/checkpoint/testdata/torch). One test holds small models of each family, in float32 and bfloat16. Another holds eleven models of
ordinary size: DINOv2-base, Swin-T, ConvNeXt-T, CLIP ViT-B/32, SigLIP-base, OPT-125M, RoBERTa-base, BART-base, Whisper-tiny, T5-small and
wav2vec 2.0 base. For these, the peak is off by 0.9 % at most.

Small models also show workspaces of the CPU, which no GPU has:

- Some models cut images into patches by a convolution. For the gradient of its weight, each thread of oneDNN has about four copies of the
  gradient (float32, patches of 16 x 16 or 32 x 32). The estimate has this for two threads, also for the wide grouped convolution of
  wav2vec 2.0.
- In bfloat16, oneDNN reorders weights. That took up to 83 KiB in steps of less than 1 MiB, so upper bounds on the CPU have 256 KiB for it.

With more threads, both grow.

## A run recorded on a GPU

For one model, PyTorch recorded every allocation on a GPU: 3.4 billion parameters, in parts that its author wrote
(kkaitlyn111/cs336-a2-systems, memory_files at c1272e1). The test describes it by layers of package nn.

- What a forward pass leaves is equal to the byte, with 128 and with 512 tokens.
- In the first training steps, the tensors at the peak are off by 0.01 %, their blocks by 0.8 %, and reserved memory by 0.6 %.

To get there, the test follows the names of the variables in the author's code. A variable keeps its tensor until the next assignment, and
the order of frees decides which blocks are used again. A report describes the second step, which needs more memory than the first.

## What is not explained

These measurements were looked at, and the estimate is off, or cannot be compared. Percentages say how much more was measured than estimated.

- **TinyLlama** with LoRA of rank 32, batch 8 (LitGPT, config_hub/finetune at 03ffc551): 12875 MiB measured, 14408 estimated, -10.6 %. The
  measurement is 8 MiB below the lower bound. It is assumed that each batch has a sample of 512 tokens.
- **Activations of vLLM** (pull request 10511): 1.26 GiB measured with Llama 3 8B, on one GPU and on two. So they come from sorting the
  logits, which the estimate does not have.
- **Activations of llm.c** with GPT-2 (18,564 MiB for 56 texts of 1,024 tokens): llm.c is not PyTorch, and allocates a fixed list of its own
  tensors.
- **octocoder** with a long prompt and flash attention: 33,400 MiB measured, about 30,600 estimated. The number of tokens is not published
  (the text has about 6,300), and the measurement includes the conversion of the layers to BetterTransformer.
- **Pythia-410M** in float16 (github.com/huggingface/transformers/pull/31031): +1 to +12 % in 16 runs. The GPT-NeoX of that version rotated
  keys in float32 and returned these with the output, although attention kept its own in float16. Each block also had a mask of 2048 x 2048
  bytes. The upper bound allows for the keys: a test checks that 10 of these runs are inside the bounds.
- **Mistral 7B and Mixtral with FSDP**, by nvidia-smi (foundation-model-stack/fms-acceleration at 04702cc5 and bfdef09c): +20 to +33 % in 6
  runs of Mistral, +26 % in one of Mixtral. FSDP gathers parameters on streams of its own, which the estimate does not have. So the upper
  bound of reserved memory is 40 % above the estimate there. A test checks that these runs are inside.
- **Mixtral 8x7B with QLoRA**: -11 % with batch 8 (the same source), and with FSDP and batch 4 (at bfdef09c) -10 %, 26850 MiB. Transformers
  ran one expert after another then; the estimate runs them at once. Smaller batches are explained.
- **Mistral 7B with QLoRA**, the other weights in float32, under float16 autocast (the same source at 04702cc5): 21768 and 38413 MiB measured,
  +11 %. The cause was not found. An old bitsandbytes (before 0.43.2), which kept inputs, would explain a part. The bounds allow for that,
  and a test checks that they hold.
- **Swin-S**, batch 48, mixed precision (github.com/microsoft/Swin-Transformer/issues/192): 7785 MiB measured, 6462 estimated, +20 %, inside
  the bounds. The source does not say whether apex or PyTorch made the precision mixed.
- **Recurrent states of Qwen3.5 9B in llama.cpp** (a log of 2026): 100.5 MiB for two sequences, 102.0 estimated. The estimate keeps the last
  four tokens for the convolution, as transformers does; llama.cpp keeps three. Keys and values are right: 544 MiB in Q8_0 for 32768 tokens.
- **BERT with 4, 8 and 12 layers**, batch 8, 512 tokens, a training step without an optimizer (huggingface.co/blog/reformer, on an unknown
  GPU): 4103, 5759 and 7415 MiB measured, 3989, 6343 and 8739 estimated. There, a layer takes 414 MiB, as if it had no dropout.
- **TimeSformer** with divided attention (open-mmlab/mmaction2 at 699e31a0): the source has 17,874 MiB for one run and 15,235 for another.
- **Llama 2 7B with LoRA**, 8,192 tokens, on one of 8 GPUs with ZeRO 2 of DeepSpeed (arXiv:2309.12307): 25.7 GB, 19 % above the first answer
  and 2 % above its upper bound. The source does not say which settings DeepSpeed had, nor what was read. The estimate does not have
  DeepSpeed's buckets.
- **LitGPT's phi-3/full.yaml**: 17.01 GB. The weights and gradients of 3.8 billion parameters in bfloat16 alone need almost as much.
`

const buffersHead = `
## llama.cpp

The size of the GPU's compute buffer: what llama.cpp printed, and what ` + "`ComputeBuffer`" + ` of package estimate/zoo returns. A test fails if one is off
by more than 10 %.

| model | context length | batch | flash attention | printed, MiB | estimate, MiB | off | source |
|---|---:|---:|---|---:|---:|---:|---|
`

const servedHead = `
The size of the weights, and of keys and values, if all layers are on the GPU. A test fails if the weights are off by more than 0.1 %, or if keys
and values differ at all. "Mixture" is llama.cpp's name of the quantization.

| model | mixture | context length | weights printed, MiB | estimate, MiB | keys and values printed, MiB | estimate, MiB | source |
|---|---|---:|---:|---:|---:|---:|---|
`

const poolsHead = `
## vLLM

vLLM takes nine tenths of the device. It runs the model once with as many tokens as it puts into a batch, and keeps what is left for keys and values.
The table compares what is left. A test fails if it is off by more than 5 %, or the weights by more than 0.1 %. vLLM really has less left than
estimated, because it sorts the logits of 256 texts and loads NCCL, which the estimate does not have.

| model | tokens | weights printed, MiB | estimate, MiB | left, printed, MiB | estimate, MiB | off | source |
|---|---:|---:|---:|---:|---:|---:|---|
`

const publishedTail = `
## What makes the bounds wide

If the options leave something open, the upper bound assumes the worst:

| open | option |
|---|---|
| where gradients are cleared; how the optimizer goes through the parameters; whether SGD uses weight decay; whether the loop holds the keys and values that decoders return | ` + "`Loop`" + ` |
| the version of PyTorch | ` + "`PyTorch`" + ` |
| whether an old bitsandbytes keeps the inputs of its products (PyTorch 2.4 or newer excludes it) | ` + "`Bitsandbytes`" + ` |
| the GPU, and with it the CUDA context | ` + "`Machine`" + ` |

One case is different. If the options do not say whether the training loop holds the model's output, the estimate itself assumes that it does. Only
the lower bound assumes that it does not.

These contexts were measured:

| GPU | kernels are loaded | context, MiB | source |
|---|---|---:|---|
`

// summary is a row about all measurements of a kind, by how far they are off.
func summary(title string, errors []float64) string {
	slices.Sort(errors)
	far := make([]float64, len(errors))
	for i, e := range errors {
		far[i] = math.Abs(e)
	}
	slices.Sort(far)
	return fmt.Sprintf("| %s | %d | %.1f %% | %.1f %% | %+.1f %% to %+.1f %% |\n",
		title, len(errors), 100*far[len(far)/2], 100*far[len(far)*9/10], 100*errors[0], 100*errors[len(errors)-1])
}

// halfOff is how far half of the measurements are off at most.
func halfOff(errors []float64) float64 {
	far := make([]float64, len(errors))
	for i, e := range errors {
		far[i] = math.Abs(e)
	}
	slices.Sort(far)
	return far[len(far)/2]
}

const summaryHead = "| measurements | number | half are off by at most | nine tenths by | from, to |\n|---|---:|---:|---:|---:|\n"

// heldOut is the table of first answers, by kind, with today's below each.
func heldOut(t *testing.T, rows []cases.Case) string {
	first, today := map[string][]float64{}, map[string][]float64{}
	outside, sources := map[string]int{}, map[string]bool{}
	for _, r := range rows {
		kind := r["kind"]
		first[kind], today[kind] = append(first[kind], r.Off(t, "first_mib")), append(today[kind], r.Off(t, "today_mib"))
		outside[r["first_outside"]]++
		source, _, _ := strings.Cut(strings.Replace(r["source"], ", ", " at ", 1), " at ")
		sources[source] = true
	}
	var b strings.Builder
	b.WriteString(summaryHead)
	for _, title := range []string{"Training adapters", "Serving", "Models that make images", "Parts of what engines hold"} {
		b.WriteString(summary(title+", first answer", first[title]) + summary(title+", today", today[title]))
		delete(first, title)
	}
	require.Empty(t, first)
	fmt.Fprintf(&b, "\nThey come from %d sources. Of the %d measurements, %d lay between the bounds of the first answer, %d below and %d above. \"Parts of what\n"+
		"engines hold\" are weights, keys and values, and buffers that whisper.cpp, llama.cpp, vLLM and SGLang print. Their bounds are 10 %% of the\nestimate.\n",
		len(sources), len(rows), outside[""], outside["below"], outside["above"])
	return b.String()
}

func only(rows []cases.Case, of func(cases.Case) bool) []cases.Case {
	return slices.DeleteFunc(slices.Clone(rows), func(c cases.Case) bool { return !of(c) })
}

func TestPublishedPage(t *testing.T) {
	all, _ := cases.Read(t, "../docs/estimate-cases.csv")
	compared := only(all, cases.Case.Compared)
	offs, far, grades, commands := map[string][]float64{}, []float64(nil), map[string]int{}, 0
	for _, c := range compared {
		off := c.Off(t, "today_mib")
		offs[c["kind"]], far = append(offs[c["kind"]], off), append(far, off)
		grades[c["grade"]]++
		if c["command"] != "" {
			commands++
		}
	}
	var page, b strings.Builder
	page.WriteString(publishedHead + heldOut(t, only(all, cases.Case.HeldOut)))
	fmt.Fprintf(&page, "\nThe estimator was corrected with %d other measurements. For half of these, the estimate of today is off by at most %.1f %%.\n", len(far), 100*halfOff(far))
	page.WriteString(publishedYours + publishedLacking)
	golden(t, "../docs/estimate.md", page.String())

	b.WriteString(casesHead + fittedHead + summaryHead)
	for _, kind := range publishedKinds {
		b.WriteString(summary(kind, offs[kind]))
		delete(offs, kind)
	}
	require.Empty(t, offs)
	fmt.Fprintf(&b, "\n%d of them have grade A, %d grade B and %d grade C. %d have a command.\n",
		grades["A"], grades["B"], grades["C"], commands)
	b.WriteString(peaksOfTensors + publishedConvolutions + buffersHead)
	for _, p := range printedBuffers {
		n, err := p.model.ComputeBuffer(family.LlamaCpp(p.by))
		require.NoError(t, err)
		flash := "no"
		if p.by.FlashAttention {
			flash = "yes"
		}
		made := float64(n) / float64(alloc.MiB)
		fmt.Fprintf(&b, "| %s | %d | %d | %s | %.2f | %.2f | %+.1f %% | %s |\n", p.name, p.by.ContextLength, max(p.by.Batch, 512), flash, p.mib, made, 100*(p.mib/made-1), p.source)
	}
	b.WriteString(servedHead)
	for _, p := range servedBuffers {
		b.WriteString(p.row(t))
	}
	b.WriteString(poolsHead)
	for _, p := range pools {
		b.WriteString(p.row(t))
	}
	b.WriteString(publishedTail)
	for _, c := range setting.Contexts() {
		fmt.Fprintf(&b, "| %s | %s | %d | %s |\n", c.Card, c.Loading, c.Bytes/alloc.MiB, c.Source)
	}
	golden(t, "../docs/estimate-cases.md", b.String())
}
