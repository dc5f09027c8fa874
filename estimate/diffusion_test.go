package estimate_test

import (
	"testing"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/diffusion"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Whatever the numbers of a model that makes images, the answer is a report that holds or an error.
func TestDenoisersOfAnyNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawn{t}
		c := family.Transformer{
			Family: rapid.SampledFrom([]*family.Family{diffusion.Flux, diffusion.Flux2, diffusion.QwenImage, diffusion.SD3, diffusion.PixArt}).Draw(t, "family"),
			Hidden: d.n("hidden"), Heads: d.n("heads"), HeadSize: d.n("head size"), FFN: d.n("ffn"), Pixels: family.Pixels{Channels: d.n("channels"), Image: d.n("image"), Patch: d.n("patch")},
			Blocks: rapid.IntRange(-1, 2).Draw(t, "blocks"),
		}
		if d.yes("fits") {
			c.Heads, c.HeadSize, c.Channels, c.Patch, c.Image = 4, 16, 8, 2, 16
			c.Hidden, c.FFN = 64, 128
		}
		if d.yes("denoiser") {
			c.Own = &diffusion.Denoiser{TextDim: d.n("text"), PooledDim: d.n("pooled"), DualBlocks: d.n("dual"), SingleBlocks: rapid.IntRange(-1, 2).Draw(t, "single"), Guided: d.yes("guided"), Sized: d.yes("sized"), Out: d.n("out")}
		}
		opts := []estimate.Option{estimate.Train("adam"), estimate.InputShape(2, d.n("height"), c.Channels), estimate.InputShape(2, d.n("tokens"), 8)}
		if c.Family == diffusion.SD3 || c.Family == diffusion.PixArt {
			c.Positions = d.n("positions")
			opts[1] = estimate.InputShape(2, c.Channels, c.Image, d.n("width"))
		}
		r, err := estimate.Model(layer.Public(c.Layers()), opts...)
		if err != nil {
			require.Nil(t, r)
			return
		}
		holds(t, r)
	})
}

// So is it of an autoencoder and of a U-Net.
func TestConvolutionalImageModelsOfAnyNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawn{t}
		a := diffusion.Autoencoder{Latent: d.n("latent"), Image: d.n("image"), Depth: d.n("depth"), Groups: d.n("groups"), NoQuant: d.yes("no quant"), NoAttention: d.yes("no attention"), Upcast: d.yes("upcast")}
		u := diffusion.UNet{Middle: d.n("middle"), Channels: a.Latent, Out: a.Image, Depth: a.Depth, Groups: a.Groups, TextDim: d.n("text"), AddedDim: d.n("added"), Linear: d.yes("linear")}
		for range rapid.IntRange(0, 4).Draw(t, "levels") {
			a.Channels = append(a.Channels, d.n("channels"))
			u.Levels = append(u.Levels, diffusion.UNetLevel{Channels: d.n("width"), Heads: d.n("heads"), Blocks: d.n("blocks")})
		}
		layers, opts := a.Layers(), []estimate.Option{estimate.Train("adam"), estimate.InputShape(d.n("batch"), a.Latent, d.n("height"), d.n("width"))}
		if d.yes("unet") {
			layers, opts = u.Layers(), append(opts, estimate.InputShape(1, 2, u.TextDim))
		}
		r, err := estimate.Model(layer.Public(layers), opts...)
		if err != nil {
			require.Nil(t, r)
			return
		}
		holds(t, r)
	})
}

// A checkpointed layer to which no gradient comes, such as an autoencoder beside a model that is trained, does not run again.
func TestNothingRunsAgainWithoutGradients(t *testing.T) {
	layers := []tape.Layer{
		tape.As("held", tape.Sequential{layer.Linear{In: 8, Out: 4096}, layer.GELU{}, layer.Linear{In: 4096, Out: 8}}),
		tape.As("trained", layer.Linear{In: 8, Out: 8}),
	}
	opts := []estimate.Option{estimate.InputShape(64, 8), estimate.Train("sgd"), estimate.Frozen("held")}
	plain, again := model(t, layer.Public(layers), opts...), model(t, layer.Public(layers), append(opts, estimate.Checkpointed("held"))...)
	assert.Equal(t, plain.Training.Peak.Bytes, again.Training.Peak.Bytes)
	assert.Equal(t, plain.Retained, again.Retained)
}

// Tensor parallelism divides the projections of attention and MLP, and leaves the modulations whole.
func TestDenoiserInParts(t *testing.T) {
	const d, ffn = 64, 192
	c := family.Transformer{
		Family: diffusion.Flux2, Hidden: d, Heads: 4, HeadSize: 16, FFN: ffn, Blocks: 2, Pixels: family.Pixels{Channels: 16},
		Own: &diffusion.Denoiser{TextDim: 48, SingleBlocks: 3},
	}
	opts := []estimate.Option{estimate.InputShape(1, 64, 16), estimate.InputShape(1, 24, 48)}
	whole, half := model(t, layer.Public(c.Layers()), opts...), model(t, layer.Public(c.Layers()), append(opts, estimate.Sharding{Tensor: 2})...)
	divided := 2*2*(4*d*d+3*d*ffn) + 3*(3*d*d+2*d*ffn+(d+ffn)*d)
	assert.EqualValues(t, whole.Inference.Weights-4*alloc.Bytes(divided)/2, half.Inference.Weights)
	assert.Less(t, half.Inference.Transient, whole.Inference.Transient)
}
