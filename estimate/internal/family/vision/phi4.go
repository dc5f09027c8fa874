package vision

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Phi4Vision and phi4Sounds are the towers of Phi-4 multimodal: SigLIP for tiles of images, and a Conformer for
// sounds, which does not run (transformers' modeling_phi4_multimodal.py). Its text is Phi-3. The adapters that come with its
// checkpoints are loaded as PEFT's and are no part of the model.
var (
	Phi4Vision = &family.Family{
		Name:  "Phi-4's tower",
		Tower: phi4Vision,
		Look:  phi4Look,
		Index: true,
		Role:  family.Encoder,
		Types: []family.Type{{Name: "phi4_multimodal", Base: "Phi4MultimodalModel", Read: readPhi4}},
	}
	phi4Sounds = &family.Family{Name: "Phi-4's tower of sounds", Tower: phi4Audio, Role: family.Encoder}
)

// tileVectors is what only Phi-4's tower of images has.
type tileVectors struct {
	states []int // the block whose output is read: -1 is the last
	crop   int   // pixels along a tile's side, as the model counts them
}

func phi4Vision(c family.Transformer, width int) []tape.Layer {
	c.Channels = setting.Or(c.Channels, 3)
	parts := siglipImages(c, family.Positions{Each: true})
	parts[1] = tape.As("encoder.layers", tape.Repeat{N: c.Blocks, Layer: clipBlock(c, layer.UseGELUTanh, phi4Tiles(c).padded())})
	parts = append(parts, tape.As("head", probe{c}))
	return []tape.Layer{tape.As("embed_tokens_extend.image_embed", tape.Module{
		Name: "ImageEmbedding",
		Params: []tape.Param{
			{Name: "global_img_feature_extensor", Shape: alloc.Shape{1, 1, c.Hidden}},
			{Name: "sub_img_feature_extensor", Shape: alloc.Shape{1, 1, 1, c.Hidden}},
		},
		Parts: tape.Sequential{
			tape.As("img_processor", tape.Module{Name: "VisionModel", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor { return phi4Encode(f, c, x) }}),
			tape.As("img_projection_up", layer.Linear{In: c.Hidden, Out: width}),
			tape.As("act", layer.GELU{}),
			tape.As("img_projection_down", layer.Linear{In: width, Out: width}),
		},
		Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor { return phi4Embed(f, c, x) },
	})}
}

// phi4Encode runs SigLIP over tiles and returns the outputs of one block. The blocks after it, the norm and the attention
// with a learned query run too.
func phi4Encode(f *tape.Flow, c family.Transformer, x tape.Tensor) tape.Tensor {
	mask := f.In(alloc.Bool, family.TowerInput(f.Tape, 2))
	if phi4Tiles(c).padded() {
		mask = f.Const(alloc.Bool, x.Dim(0), 1, c.Side()*c.Side(), c.Side()*c.Side())
	}
	states, output := navitEncoder.run(f, c, x)
	f.Call("head", output)
	f.Hold(append(states, mask, output)...)
	i := len(states) - 2
	if own := family.Own[tileVectors](c); own != nil {
		i = (own.states[0] + len(states)) % len(states)
	}
	return states[max(0, i)]
}

// phi4Embed runs the tower over (images, tiles, channels, height, width). The vectors of squares of four patches are
// averaged. Those of the tiles stand in rows, without the padding, then a learned vector and the rows of the whole image;
// each row ends with a learned vector.
func phi4Embed(f *tape.Flow, c family.Transformer, x tape.Tensor) tape.Tensor {
	f.Rank(x, 5, "(images, tiles, channels, height, width)")
	images, tiles, base := x.Dim(0), phi4Tiles(c), c.Side()/2
	x = f.Call("img_processor", f.View(x, append([]int{-1}, x.Shape[2:]...)...))
	x = f.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{images, tiles.columns*tiles.rows + 1, base, base, c.Hidden}, Keep: []tape.Tensor{x}})
	f.Drop()
	parts := f.Split(x, 1, 1, tiles.columns*tiles.rows)
	whole := f.Op(tape.Op{In: parts[:1], Shape: alloc.Shape{images, base * (base + 1), c.Hidden}, Params: true, PassGrad: true})
	cut := f.Copy(parts[1])
	cut = f.Op(tape.Op{In: []tape.Tensor{cut}, Shape: alloc.Shape{images, tiles.high * (tiles.wide + 1), c.Hidden}, Params: true, PassGrad: true})
	x = f.Op(tape.Op{In: []tape.Tensor{cut, whole}, Shape: alloc.Shape{images, tiles.vectors(base), c.Hidden}, Params: true, PassGrad: true})
	x = f.Call("img_projection_down", f.Call("act", f.Call("img_projection_up", x)))
	return f.Copy(f.View(x, -1, x.Dim(-1))) // the images of all texts, joined
}

// phi4Tiling is how an image is cut.
type phi4Tiling struct {
	columns, rows int // of tiles
	wide, high    int // vectors in a row and a column of them, without the padding
	pad           int // patches of padding in a row or column
	filled        int // pixels of the image along the side with the padding
}

// padded reports whether some patches are padding, so that attention needs a mask.
func (t phi4Tiling) padded() bool { return t.pad > 0 }

// vectors returns how many stand for an image whose tiles have base vectors along a side.
func (t phi4Tiling) vectors(base int) int { return t.high*(t.wide+1) + 1 + base*(base+1) }

// phi4MostTiles is the most that an image is cut into, as transformers' processor has it.
const phi4MostTiles = 36

// phi4Tiles returns the tiles of an image of the Prompt. It is enlarged to fill them along one side, if there are not too
// many (image_processing_phi4_multimodal.py, dynamic_preprocess).
func phi4Tiles(c family.Transformer) phi4Tiling {
	if c.Prompt == nil || c.Image < 1 || c.Patch < 1 {
		return phi4Tiling{columns: 1, rows: 1}
	}
	side, width, height := c.Image, c.Prompt.Width, c.Prompt.Height
	columns, rows := (width-1)/side+1, (height-1)/side+1
	if columns > phi4MostTiles/rows {
		columns, rows = closestTiles(width, height, side)
	}
	t := phi4Tiling{columns: columns, rows: rows}
	across, down := c.Side()*columns, c.Side()*rows // patches
	byWidth, byHeight := float64(side*columns)/float64(width), float64(side*rows)/float64(height)
	if byWidth < byHeight {
		t.filled = int(float64(height) * byWidth)
		t.pad = (side*rows - t.filled) / c.Patch
		down -= t.pad
	} else {
		t.filled = int(float64(width) * byHeight)
		t.pad = (side*columns - t.filled) / c.Patch
		across -= t.pad
	}
	t.wide, t.high = (across+1)/2, (down+1)/2
	return t
}

// closestTiles returns the numbers of tiles with the ratio of an image's sides, or nearly so: of those equally near the
// most that the image fills half (find_closest_aspect_ratio).
func closestTiles(width, height, side int) (columns, rows int) {
	columns, rows = 1, 1
	nearest, ratio := math.Inf(1), float64(width)/float64(height)
	for tiles := 1; tiles <= phi4MostTiles; tiles++ {
		for i := 1; i <= tiles; i++ {
			if tiles%i != 0 {
				continue
			}
			far := math.Abs(ratio - float64(i)/float64(tiles/i))
			if far < nearest || far == nearest && float64(width)*float64(height) > 0.5*float64(side)*float64(side)*float64(tiles) {
				nearest, columns, rows = far, i, tiles/i
			}
		}
	}
	return columns, rows
}

// phi4Look is that of an image that is cut into tiles, with the whole image before them.
func phi4Look(c family.Transformer) (family.Look, error) {
	own := family.Own[tileVectors](c)
	switch {
	case c.Side() < 2 || c.Side()%2 != 0 || c.Side() > maxKernel:
		return family.Look{}, family.Unfit(fmt.Sprintf("the %d patches along an image's side do not divide into squares of 2", c.Side()))
	case own.crop != c.Image:
		return family.Look{}, family.Unfit(fmt.Sprintf("crop_size is %d, image_size %d", own.crop, c.Image))
	}
	const thinnest = 10 // pixels
	tiles := phi4Tiles(c)
	if tiles.filled < thinnest || tiles.wide < 1 || tiles.high < 1 {
		return family.Look{}, fmt.Errorf("its short side becomes %d pixels: want at least %d", tiles.filled, thinnest)
	}
	all := tiles.columns*tiles.rows + 1
	return family.Look{Tokens: tiles.vectors(c.Side() / 2), Sized: true, Inputs: func(batch, _, count int) []family.Input {
		return []family.Input{
			family.Reals(batch, count, all, c.Channels, c.Image, c.Image),
			{DType: alloc.Int64, Shape: []int{batch, count, 2}},                         // the sizes of the images' tiles together
			{DType: alloc.Float32, Shape: []int{batch, count, all, c.Side(), c.Side()}}, // which patches are no padding
		}
	}}, nil
}

// conformer are the numbers that only the tower of sounds has.
type conformer struct {
	pointwise, separable, depth, kernel int // of the convolutions in a block
	buckets                             int // of distances
	halvings, channels, last            int // of the convolutions before the blocks, and what remains of the spectrum
	joined                              int // vectors that are projected together
}

func phi4Audio(c family.Transformer, width int) []tape.Layer {
	own := *setting.Or(family.Own[conformer](c), &conformer{})
	norm := layer.LayerNorm{Size: c.Hidden}
	feed := tape.Sequential{
		tape.As("layer_norm", norm), tape.As("gate_up_proj", layer.Linear{In: c.Hidden, Out: setting.Product(2, c.FFN)}), tape.As("down_proj", layer.Linear{In: c.FFN, Out: c.Hidden}),
	}
	deep := setting.Product(c.Hidden, own.depth)
	bias := func(name string) tape.Layer {
		return tape.Inline(layer.Learned{Name: name, Shape: alloc.Shape{1, own.pointwise, 1}})
	}
	block := tape.Sequential{
		tape.As("feed_forward_in", feed),
		tape.As("self_attn", layer.Attention{Hidden: c.Hidden, Heads: c.Heads}),
		tape.As("conv", tape.Sequential{
			tape.As("layer_norm", norm),
			tape.As("glu", tape.Sequential{tape.As("ext_pw_conv_1d", layer.Conv1d{In: c.Hidden, Out: setting.Product(2, own.pointwise), Kernel: 1}), bias("b1"), bias("b2")}),
			tape.As("dw_sep_conv_1d", tape.Sequential{
				tape.As("dw_conv", layer.Conv1d{In: c.Hidden, Out: deep, Kernel: own.kernel, Groups: c.Hidden}), tape.As("pw_conv", layer.Conv1d{In: deep, Out: own.separable, Kernel: 1}),
			}),
			tape.As("ext_pw_conv_1d", layer.Conv1d{In: c.Hidden, Out: own.pointwise, Kernel: 1}),
		}),
		tape.As("feed_forward_out", feed), tape.As("layer_norm_att", norm), tape.As("layer_norm", norm),
	}
	convs := tape.Sequential{layer.Conv2d{In: 1, Out: own.channels, Kernel: 3}}
	for range own.halvings - 1 {
		convs = append(convs, layer.Conv2d{In: own.channels, Out: own.channels, Kernel: 3, Groups: own.channels}, layer.Conv2d{In: own.channels, Out: own.channels, Kernel: 1})
	}
	up, down := layer.Linear{In: setting.Product(c.Hidden, own.joined), Out: width}, layer.Linear{In: width, Out: width}
	return []tape.Layer{tape.As("embed_tokens_extend.audio_embed", tape.Sequential{
		tape.As("encoder", tape.Sequential{
			tape.As("encoder_embedding", tape.Module{Params: []tape.Param{
				{Name: "global_mean", Shape: alloc.Shape{c.Channels}, Buffer: true}, {Name: "global_invstd", Shape: alloc.Shape{c.Channels}, Buffer: true},
			}, Run: func(_ *tape.Flow, x tape.Tensor) tape.Tensor { return x }}),
			tape.As("embed.conv", convs),
			tape.As("embed.out", layer.Linear{In: setting.Product(own.channels, own.last), Out: c.Hidden}),
			tape.As("relative_attention_bias_layer.bias_values", layer.Embedding{Num: own.buckets, Dim: c.Heads}),
			tape.As("encoders", tape.Repeat{N: c.Blocks, Layer: block}),
		}),
		tape.As("up_proj_for_speech", up), tape.As("down_proj_for_speech", down),
		tape.As("up_proj_for_vision_speech", up), tape.As("down_proj_for_vision_speech", down),
	})}
}

func readPhi4(c *family.Config, a *family.Model) {
	imageText{head: "Phi4MultimodalForCausalLM", text: "phi3", vision: "phi4_multimodal_vision", numbers: func(v, _ *family.Config, t *family.Model) {
		towerNumbers(v, &t.Transformer)
		v.Activation(t, v.Word("hidden_act"), "gelu_pytorch_tanh")
		images := &tileVectors{states: layerNumbers(v, "feature_layer", t.Blocks, -2)}
		v.Number(&images.crop, "crop_size", 448)
		t.Own = images
	}}.read(c, a)
	tower, own, joins := family.Model{}, &conformer{}, 0
	tower.Family = phi4Sounds
	s := c.Component("audio_config", "phi4_multimodal_audio")
	s.Number(&tower.Hidden, "hidden_size", 1024)
	s.Number(&tower.FFN, "intermediate_size", 1536)
	s.Number(&tower.Blocks, "num_blocks", 24)
	s.Number(&tower.Heads, "num_attention_heads", 16)
	s.Number(&tower.Channels, "input_size", 80)
	s.Number(&own.pointwise, "ext_pw_out_channel", 1024)
	s.Number(&own.separable, "depthwise_separable_out_channel", 1024)
	s.Number(&own.depth, "depthwise_multiplier", 1)
	s.Number(&own.kernel, "kernel_size", 3)
	s.Number(&own.buckets, "bias_max_distance", 1000)
	if !s.Flag("bias_symmetric", false) {
		own.buckets = setting.Product(2, own.buckets)
	}
	s.Number(&joins, "time_reduction", 8)
	s.Number(&own.channels, "nemo_conv_channels", 1024)
	s.Number(&own.joined, "downsample_rate", 1)
	own.halvings, own.last = bits.Len(uint(joins))-1, tower.Channels
	for range own.halvings {
		own.last = (own.last-1)/2 + 1
	}
	s.Number(&own.last, "nemo_final_size", own.last)
	tower.Own = own
	c.Check("audio_config", &tower)
	a.Audio = &tower.Transformer
}
