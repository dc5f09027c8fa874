package estimate_test

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// beside is what a device holds besides the model that runs: so many elements of a type.
type beside struct {
	name  string
	n     int
	dtype alloc.DType
}

func (b beside) Declare(d *estimate.Declaration) {
	d.Add(estimate.Param{Name: b.name, Shape: alloc.Shape{b.n}, DType: b.dtype, Buffer: true})
}

func (beside) Forward(_ *estimate.Tape, x estimate.Tensor) (estimate.Tensor, error) { return x, nil }

var klein4b = estimate.Transformer{
	Family: estimate.Flux2, Hidden: 3072, Heads: 24, HeadSize: 128, FFN: 9216, Blocks: 5, Channels: 128,
	Denoiser: &estimate.Denoiser{TextDim: 7680, SingleBlocks: 20},
}

// kleinTargets are the layers that PEFT's comparison gives adapters.
var kleinTargets = []string{"to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "linear_in", "linear_out", "to_qkv_mlp_proj"}

// kleinRow is one of PEFT's comparison of methods. Its script holds the prompts' states and the latent images of
// 14 samples on the device, and a DINOv2-base in float32; text encoder and VAE are on the CPU while it trains.
func kleinRow(how, file string, mib float64, more ...estimate.Option) published {
	layers := with(klein4b.Layers(), beside{"prompts", 14 * 512 * 7680, alloc.BFloat16}, beside{"latents", 14 * 128 * 32 * 32, alloc.BFloat16}, beside{"dinov2", 86580480, alloc.Float32}, estimate.MSE{})
	return published{
		kind: "diffusion", model: "FLUX.2-klein-base-4B, 512 x 512", setting: "batch 2, bfloat16, checkpointed, " + how, grade: "B", mib: mib, what: "reserved",
		source: "huggingface/peft, method_comparison/image-gen/results/" + file, layers: layers,
		opts: append(opts(estimate.InputShape(2, 32*32, 128), estimate.InputShape(2, 512, 7680), estimate.Precision(alloc.BFloat16), estimate.Train(estimate.AdamW),
			estimate.Checkpointed("transformer_blocks.*", "single_transformer_blocks.*"), estimate.PyTorch(2, 12),
			estimate.Loops(estimate.Loop{ZeroGrad: estimate.ZeroGradFirst, Form: estimate.ForEach}),
			estimate.RunsOn(estimate.Machine{GPU: estimate.Ada, Loading: estimate.LazyLoading})), more...),
	}
}

var (
	fluxDev = estimate.Transformer{
		Family: estimate.Flux, Hidden: 3072, Heads: 24, HeadSize: 128, FFN: 12288, Blocks: 19, Channels: 64,
		Denoiser: &estimate.Denoiser{TextDim: 4096, PooledDim: 768, SingleBlocks: 38, Guided: true},
	}
	pixArtSigma = estimate.Transformer{
		Family: estimate.PixArt, Hidden: 1152, Heads: 16, HeadSize: 72, FFN: 4608, Blocks: 28, Channels: 4, Image: 128, Patch: 2,
		Denoiser: &estimate.Denoiser{TextDim: 4096, Out: 8},
	}
)

// What PyTorch counts of the parameters of text encoders, all of T5-XXL's encoder and those of its MLPs'
// last layers, which transformers keeps in float32 where the rest is float16.
const (
	clipLarge = 123060480
	t5XXL     = 4762310656
	t5XXLLast = 24 * 4096 * 10240
)

// waits is a model that is held while another runs.
type waits struct{ layers []estimate.Layer }

func (w waits) Declare(d *estimate.Declaration) { estimate.Sequential(w.layers).Declare(d) }

func (waits) Forward(_ *estimate.Tape, x estimate.Tensor) (estimate.Tensor, error) { return x, nil }

// fluxHeld are the models of FLUX.1-dev but for the autoencoder.
func fluxHeld() []estimate.Layer {
	return []estimate.Layer{
		estimate.As("transformer", waits{fluxDev.Layers()}),
		estimate.As("text_encoder", beside{"weight", clipLarge, alloc.BFloat16}), estimate.As("text_encoder_2", beside{"weight", t5XXL, alloc.BFloat16}),
	}
}

var fluxVAE = estimate.Autoencoder{Channels: []int{128, 256, 512, 512}, Latent: 16, NoQuant: true, Upcast: true}

// pixArtHeld are all models of PixArt-Sigma.
func pixArtHeld() []estimate.Layer {
	vae := estimate.Autoencoder{Channels: []int{128, 256, 512, 512}, Latent: 4}
	return []estimate.Layer{
		estimate.As("transformer", waits{pixArtSigma.Layers()}), estimate.As("vae", waits{vae.Layers()}),
		estimate.As("text_encoder", beside{"weight", t5XXL - t5XXLLast, alloc.Float16}), estimate.As("wo", beside{"weight", t5XXLLast, alloc.Float32}),
	}
}

const torchao = "github.com/sayakpaul/diffusers-torchao, README.md, Flux benchmarks"

// fluxRow is sayakpaul/diffusers-torchao's: a prompt and so many images, whose decoding is the peak.
func fluxRow(images int, mib float64) published {
	return published{
		kind: "diffusion", model: "FLUX.1-dev, the whole pipeline, 1024 x 1024", setting: fmt.Sprintf("%d images, bfloat16; decoding of all at once, enlarging in float32", images), grade: "B", mib: mib, what: "allocated",
		source: torchao, layers: append(fluxHeld(), fluxVAE.Layers()...),
		opts: opts(estimate.InputShape(images, 16, 128, 128), estimate.Precision(alloc.BFloat16), estimate.PyTorch(2, 6)),
	}
}

func diffusionRows() []published {
	lora := func(rank int) estimate.Option {
		return estimate.Adapt(estimate.LoRA{Rank: rank, Targets: kleinTargets})
	}
	return []published{
		kleinRow("AdamW", "full-finetuning--flux2-klein-default.json at dd5afc5c", 38026),
		kleinRow("LoRA of rank 64", "lora--flux2-klein-rank64.json at f29246b2", 10856, lora(64)),
		kleinRow("LoRA of rank 32", "lora--flux2-klein-default.json at ee12620d", 10212, lora(32)),
		{
			kind: "diffusion", model: "FLUX.1-dev, the whole pipeline", setting: "loaded in bfloat16", grade: "A", mib: 32192.51, what: "allocated", source: torchao,
			layers: append(fluxHeld(), estimate.As("vae", waits{fluxVAE.Layers()})), opts: opts(estimate.InputShape(1), estimate.Precision(alloc.BFloat16), estimate.PyTorch(2, 6)),
		},
		{
			kind: "diffusion", model: "PixArt-Sigma, the whole pipeline", setting: "loaded in float16; GB taken as GiB", grade: "B", mib: 12376.06, what: "allocated", source: "huggingface/blog, quanto-diffusers.md at 0dd3fc43",
			layers: pixArtHeld(), opts: opts(estimate.InputShape(1), estimate.Precision(alloc.Float16), estimate.PyTorch(2, 4)),
		},
		fluxRow(8, 48649.22),
		fluxRow(16, 63025.15),
	}
}
