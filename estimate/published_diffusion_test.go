package estimate_test

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/diffusion"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// beside is what a device holds besides the model that runs: so many elements of a type, in rows of 64.
type beside struct {
	name  string
	n     int64
	dtype alloc.DType
}

func (b beside) Declare(d *tape.Declaration) {
	d.Add(tape.Param{Name: b.name, Shape: alloc.Shape{int(b.n / 64), 64}, DType: b.dtype, Buffer: true})
}

func (beside) Forward(_ *tape.Tape, x tape.Tensor) tape.Tensor { return x }

var klein4b = family.Transformer{
	Family: diffusion.Flux2, Hidden: 3072, Heads: 24, HeadSize: 128, FFN: 9216, Blocks: 5, Pixels: family.Pixels{Channels: 128},
	Own: &diffusion.Denoiser{TextDim: 7680, SingleBlocks: 20},
}

// kleinTargets are the layers that PEFT's comparison gives adapters.
var kleinTargets = []string{"to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "linear_in", "linear_out", "to_qkv_mlp_proj"}

// kleinRow is one of PEFT's comparison of methods. Its script holds the prompts' states and the latent images of
// 14 samples on the device, and a DINOv2-base in float32; text encoder and VAE are on the CPU while it trains.
func kleinRow(how string, more ...estimate.Option) owned {
	layers := with(klein4b.Layers(), beside{"prompts", 14 * 512 * 7680, alloc.BFloat16}, beside{"latents", 14 * 128 * 32 * 32, alloc.BFloat16}, beside{"dinov2", 86580480, alloc.Float32}, layer.MSE{})
	return owned{
		model: "FLUX.2-klein-base-4B, 512 x 512", setting: "batch 2, bfloat16, checkpointed, " + how, layers: layers,
		opts: append(opts(estimate.InputShape(2, 32*32, 128), estimate.InputShape(2, 512, 7680), estimate.Precision(alloc.BFloat16), estimate.Train("adamw"),
			estimate.Checkpointed("transformer_blocks.*", "single_transformer_blocks.*"), estimate.Installed("torch==2.12"),
			estimate.Loop{ZeroGrad: "first", Form: "foreach"},
			estimate.Machine{GPU: "ada", Loading: "lazy"}), more...),
	}
}

var (
	fluxDev = family.Transformer{
		Family: diffusion.Flux, Hidden: 3072, Heads: 24, HeadSize: 128, FFN: 12288, Blocks: 19, Pixels: family.Pixels{Channels: 64},
		Own: &diffusion.Denoiser{TextDim: 4096, PooledDim: 768, SingleBlocks: 38, Guided: true},
	}
	pixArtSigma = family.Transformer{
		Family: diffusion.PixArt, Hidden: 1152, Heads: 16, HeadSize: 72, FFN: 4608, Blocks: 28, Pixels: family.Pixels{Channels: 4, Image: 128, Patch: 2},
		Own: &diffusion.Denoiser{TextDim: 4096, Out: 8},
	}
	sd3Medium = family.Transformer{
		Family: diffusion.SD3, Hidden: 1536, Heads: 24, FFN: 6144, Blocks: 24, Pixels: family.Pixels{Channels: 16, Image: 128, Patch: 2}, Positions: 192 * 192,
		Own: &diffusion.Denoiser{TextDim: 4096, PooledDim: 2048},
	}
)

// What PyTorch counts of the parameters of text encoders, all of T5-XXL's encoder and those of its MLPs'
// last layers, which transformers keeps in float32 where the rest is float16.
const (
	clipLarge = 123060480
	clipG     = 694659840         // with its projection
	clipBoth  = 123650304 + clipG // of SD3, with their projections
	t5XXL     = 4762310656
	t5XXLLast = 24 * 4096 * 10240
)

// waits is a model that is held while another runs.
type waits struct{ layers []tape.Layer }

func (w waits) Declare(d *tape.Declaration) { tape.Sequential(w.layers).Declare(d) }

func (waits) Forward(_ *tape.Tape, x tape.Tensor) tape.Tensor { return x }

// fluxHeld are the models of FLUX.1-dev but for the autoencoder.
func fluxHeld() []tape.Layer {
	return []tape.Layer{
		tape.As("transformer", waits{fluxDev.Layers()}),
		tape.As("text_encoder", beside{"weight", clipLarge, alloc.BFloat16}), tape.As("text_encoder_2", beside{"weight", t5XXL, alloc.BFloat16}),
	}
}

var fluxVAE = diffusion.Autoencoder{Channels: []int{128, 256, 512, 512}, Latent: 16, NoQuant: true, Upcast: true}

// quantoRow is a pipeline with T5-XXL in float16, of which the blog's values are those of what is loaded: four
// images need 1 MiB more than one.
func quantoRow(name string, m family.Transformer, vae diffusion.Autoencoder, clip int64) owned {
	layers := []tape.Layer{
		tape.As("transformer", waits{m.Layers()}), tape.As("vae", waits{vae.Layers()}),
		tape.As("text_encoder", beside{"weight", clip + t5XXL - t5XXLLast, alloc.Float16}), tape.As("wo", beside{"weight", t5XXLLast, alloc.Float32}),
	}
	return owned{
		model: name + ", the whole pipeline", setting: "loaded in float16; GB taken as GiB",
		layers: layers, opts: opts(estimate.InputShape(1), estimate.Precision(alloc.Float16), estimate.Installed("torch==2.4")),
	}
}

// fluxRow is sayakpaul/diffusers-torchao's: a prompt and so many images, whose decoding is the peak.
func fluxRow(images int) owned {
	return owned{
		model: "FLUX.1-dev, the whole pipeline, 1024 x 1024", setting: fmt.Sprintf("%d images, bfloat16; decoding of all at once, enlarging in float32", images),
		layers: append(fluxHeld(), fluxVAE.Layers()...),
		opts:   opts(estimate.InputShape(images, 16, 128, 128), estimate.Precision(alloc.BFloat16), estimate.Installed("torch==2.6")),
	}
}

var sdxl = diffusion.UNet{
	Levels: []diffusion.UNetLevel{{Channels: 320, Heads: 5}, {Channels: 640, Heads: 10, Blocks: 2}, {Channels: 1280, Heads: 20, Blocks: 10}}, Middle: 10,
	TextDim: 2048, AddedDim: 2816, Linear: true,
}

// sdxlRow is sayakpaul's benchmark of SDXL, not compiled, whose peak is the decoding.
func sdxlRow(how string, d alloc.DType) owned {
	vae := diffusion.Autoencoder{Channels: []int{128, 256, 512, 512}, Latent: 4, Upcast: d == alloc.BFloat16}
	layers := []tape.Layer{
		tape.As("unet", waits{sdxl.Layers()}), tape.As("text_encoder", beside{"weight", clipLarge, d}), tape.As("text_encoder_2", beside{"weight", clipG, d}),
	}
	return owned{
		model: "SDXL, the whole pipeline, 1024 x 1024", setting: how, layers: append(layers, vae.Layers()...),
		opts: opts(estimate.InputShape(1, 4, 128, 128), estimate.Precision(d), estimate.Installed("torch==2.2")),
	}
}

func diffusionRows() []owned {
	lora := func(rank int) estimate.Option {
		return estimate.LoRA{Rank: rank, Targets: kleinTargets}
	}
	return []owned{
		kleinRow("AdamW"),
		kleinRow("LoRA of rank 64", lora(64)),
		kleinRow("LoRA of rank 32", lora(32)),
		{
			model: "FLUX.1-dev, the whole pipeline", setting: "loaded in bfloat16",
			layers: append(fluxHeld(), tape.As("vae", waits{fluxVAE.Layers()})), opts: opts(estimate.InputShape(1), estimate.Precision(alloc.BFloat16), estimate.Installed("torch==2.6")),
		},
		quantoRow("PixArt-Sigma", pixArtSigma, diffusion.Autoencoder{Channels: []int{128, 256, 512, 512}, Latent: 4}, 0),
		quantoRow("Stable Diffusion 3 medium", sd3Medium, fluxVAE, clipBoth),
		fluxRow(8),
		fluxRow(16),
		sdxlRow("one image, bfloat16; enlarging in float32", alloc.BFloat16),
		sdxlRow("one image, float32", alloc.Float32),
	}
}
