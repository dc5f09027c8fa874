package diffusion

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

var uNetFamily = &family.Family{
	Name:  "U-Net",
	Types: []family.Type{{Name: "UNet2DConditionModel", Read: readUNet}},
}

// UNet is the U-Net of Stable Diffusion (diffusers' UNet2DConditionModel, arXiv:2112.10752). It
// reads a noisy image, (batch, Channels, height, width), and the text as its encoder returns it,
// (batch, length, TextDim). Timesteps, and SDXL's other numbers for each image, are left out.
type UNet struct {
	Levels   []UNetLevel // from the highest resolution to the lowest
	Middle   int         // transformer blocks in the middle, with the heads of the last level
	Channels int         // of what it reads; 0 means 4
	Out      int         // of what it returns; 0 means 4
	Depth    int         // residual blocks in each level on the way down; one more on the way up; 0 means 2
	Groups   int         // of the norms; 0 means 32
	TextDim  int         // width of the text encoder's output
	Guided   int         // width of the embedded guidance scale, as in latent consistency models; 0 means none
	AddedDim int         // width of what is embedded besides the timestep (SDXL); 0 means nothing
	Side     int         // usual side of its latent images
	Linear   bool        // each transformer has a Linear before and after it instead of a convolution
}

// UNetLevel is a resolution of a UNet.
type UNetLevel struct {
	Channels int
	Heads    int // of attention
	Blocks   int // transformer blocks after each residual block; 0 means none
}

// Layers returns the model's layers. Model reports numbers that make no sense.
func (u UNet) Layers() []tape.Layer {
	u.Channels, u.Out, u.Depth, u.Groups = setting.Or(u.Channels, 4), setting.Or(u.Out, 4), setting.Or(u.Depth, 2), setting.Or(u.Groups, 32)
	if len(u.Levels) == 0 || len(u.Levels) > maxLevels || u.Depth < 0 || u.Depth > maxDenoiserBlocks || u.Middle < 0 || u.Middle > maxDenoiserBlocks {
		return []tape.Layer{tape.Wrong(fmt.Sprintf("there are %d Levels of %d blocks, and %d in the middle: want 1 to %d Levels, and 0 to %d", len(u.Levels), u.Depth, u.Middle, maxLevels, maxDenoiserBlocks))}
	}
	for _, l := range u.Levels {
		if l.Blocks < 0 || l.Blocks > maxDenoiserBlocks || l.Channels < 1 || l.Channels > setting.MaxField/8 {
			return []tape.Layer{tape.Wrong(fmt.Sprintf("a level is %+v: want up to %d Blocks of 1 to %d Channels", l, maxDenoiserBlocks, setting.MaxField/8))}
		}
	}
	first := u.Levels[0].Channels
	parts := tape.Sequential{
		tape.As("conv_in", threeByThree(u.Channels, first)),
		tape.As("time_embedding", u.timeEmbedding()),
		tape.As("conv_norm_out", layer.GroupNorm{Groups: u.Groups, Channels: first}),
		tape.As("conv_out", threeByThree(first, u.Out)),
	}
	if u.AddedDim != 0 {
		parts = append(parts, tape.As("add_embedding", twoLinears(u.AddedDim, u.time(), layer.SiLU{}, true)))
	}
	down, middle, up := u.down(), u.middle(), u.up()
	for _, b := range append(append(down, middle), up...) {
		parts = append(parts, b.parts()...)
	}
	return []tape.Layer{tape.Inline(tape.Module{Name: "UNet", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		text, time := f.Input(1), u.condition(f, x.Dim(0))
		x = f.Call("conv_in", x)
		skipped := []tape.Tensor{x}
		for _, b := range down {
			x, skipped = b.run(f, x, time, text, skipped)
		}
		x, _ = middle.run(f, x, time, text, nil)
		for _, b := range up {
			x, skipped = b.run(f, x, time, text, skipped)
		}
		return f.Call("conv_out", f.Apply(layer.SiLU{}, f.Call("conv_norm_out", x)))
	}})}
}

// time is the width of the embedded timestep.
func (u UNet) time() int { return 4 * u.Levels[0].Channels }

// timeEmbedding embeds the timestep, to which it adds the guidance scale if the model reads one.
func (u UNet) timeEmbedding() tape.Layer {
	first := u.Levels[0].Channels
	plain := twoLinears(first, u.time(), layer.SiLU{}, true).(tape.Sequential)
	if u.Guided == 0 {
		return plain
	}
	parts := append(plain, tape.As("cond_proj", layer.Linear{In: u.Guided, Out: first, NoBias: true}))
	return tape.Module{Name: "TimestepEmbedding", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		x = f.Add(x, f.Call("cond_proj", f.Const(f.Activation(), x.Dim(0), u.Guided)))
		return f.Call("linear_2", f.Call("act", f.Call("linear_1", x)))
	}}
}

// condition returns the embedded timestep and what is added to it, which the residual blocks read.
func (u UNet) condition(f *tape.Flow, batch int) tape.Tensor {
	time := f.Call("time_embedding", f.Const(f.Activation(), batch, u.Levels[0].Channels))
	if u.AddedDim != 0 {
		time = f.Add(time, f.Call("add_embedding", f.Const(f.Activation(), batch, u.AddedDim)))
	}
	return time
}

// unetBlock is a list of residual blocks, each with its transformer, and a change of resolution. On
// the way down its outputs are also kept for the way up, where each residual block reads one of
// them.
type unetBlock struct {
	name    string
	resnets []resnet
	attends tape.Layer // the transformer; nil for none
	change  string     // name of the layer that changes the resolution; empty if there is none
	rises   bool       // it is on the way up
	keeps   bool       // it is on the way down
}

func (u UNet) down() []unetBlock {
	var blocks []unetBlock
	in := u.Levels[0].Channels
	for i, l := range u.Levels {
		b := unetBlock{name: "down_blocks." + strconv.Itoa(i), attends: u.transformer(l, l.Blocks), keeps: true}
		for range u.Depth {
			b.resnets, in = append(b.resnets, resnet{in: in, out: l.Channels, time: u.time(), groups: u.Groups}), l.Channels
		}
		if in = l.Channels; i+1 < len(u.Levels) {
			b.change = b.name + ".downsamplers.0"
		}
		blocks = append(blocks, b)
	}
	return blocks
}

func (u UNet) middle() unetBlock {
	l := u.Levels[len(u.Levels)-1]
	one := resnet{in: l.Channels, out: l.Channels, time: u.time(), groups: u.Groups}
	return unetBlock{name: "mid_block", resnets: []resnet{one, one}, attends: u.transformer(l, u.Middle)}
}

func (u UNet) up() []unetBlock {
	var blocks []unetBlock
	in := u.Levels[len(u.Levels)-1].Channels
	for i := range u.Levels {
		at := len(u.Levels) - 1 - i
		l := u.Levels[at]
		b := unetBlock{name: "up_blocks." + strconv.Itoa(i), attends: u.transformer(l, l.Blocks), rises: true}
		for j := range u.Depth + 1 {
			skipped := l.Channels
			if j == u.Depth {
				skipped = u.Levels[max(0, at-1)].Channels
			}
			b.resnets, in = append(b.resnets, resnet{in: in + skipped, out: l.Channels, time: u.time(), groups: u.Groups}), l.Channels
		}
		if at > 0 {
			b.change = b.name + ".upsamplers.0"
		}
		blocks = append(blocks, b)
	}
	return blocks
}

// transformers returns the number of transformers: as many as residual blocks, or one fewer in the
// middle.
func (b unetBlock) transformers() int {
	switch {
	case b.attends == nil:
		return 0
	case b.keeps || b.rises:
		return len(b.resnets)
	}
	return len(b.resnets) - 1
}

func (b unetBlock) resnet(i int) string { return b.name + ".resnets." + strconv.Itoa(i) }

func (b unetBlock) transformer(i int) string { return b.name + ".attentions." + strconv.Itoa(i) }

func (b unetBlock) parts() tape.Sequential {
	var parts tape.Sequential
	for i, r := range b.resnets {
		parts = append(parts, tape.As(b.resnet(i), r.layer()))
	}
	for i := range b.transformers() {
		parts = append(parts, tape.As(b.transformer(i), b.attends))
	}
	if b.change == "" {
		return parts
	}
	out := b.resnets[len(b.resnets)-1].out
	change := tape.Sequential{tape.As("conv", layer.Conv2d{In: out, Out: out, Kernel: 3, Stride: 2, Padding: 1})}
	if b.rises {
		change = tape.Sequential{tape.Inline(enlarged{}), tape.As("conv", threeByThree(out, out))}
	}
	return append(parts, tape.As(b.change, change))
}

// run returns the block's output and the kept outputs. The way up takes them from the end.
func (b unetBlock) run(f *tape.Flow, x, time, text tape.Tensor, skipped []tape.Tensor) (tape.Tensor, []tape.Tensor) {
	entered, taken := x, []tape.Tensor(nil)
	for i := range b.resnets {
		if b.rises {
			last := skipped[len(skipped)-1]
			skipped, taken = skipped[:len(skipped)-1], append(taken, last)
			x = f.Cat(1, x, last)
		}
		x = f.Call(b.resnet(i), x, time)
		if i < b.transformers() {
			x = f.Call(b.transformer(i), x, text)
		}
		if b.keeps {
			skipped = append(skipped, x)
		}
	}
	if b.change != "" {
		if x = f.Call(b.change, x); b.keeps {
			skipped = append(skipped, x)
		}
	}
	f.Hold(entered)
	f.Hold(taken...)
	return x, skipped
}

// transformer returns the transformer after a residual block of a level (diffusers'
// Transformer2DModel), or nil for 0 blocks.
func (u UNet) transformer(l UNetLevel, blocks int) tape.Layer {
	if blocks == 0 {
		return nil
	}
	n := l.Channels
	parts := tape.Sequential{tape.As("norm", layer.GroupNorm{Groups: u.Groups, Channels: n})}
	for _, name := range []string{"proj_in", "proj_out"} {
		if u.Linear {
			parts = append(parts, tape.As(name, layer.Linear{In: n, Out: n}))
		} else {
			parts = append(parts, tape.As(name, layer.Conv2d{In: n, Out: n, Kernel: 1}))
		}
	}
	block := u.block(l)
	for i := range blocks {
		parts = append(parts, tape.As("transformer_blocks."+strconv.Itoa(i), block))
	}
	return tape.Module{Name: "Transformer", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Call("norm", x)
		if !u.Linear {
			y = f.Call("proj_in", y)
		}
		y = f.Permute(f.View(y, x.Dim(0), n, -1), 0, 2, 1)
		if u.Linear {
			if x.Dim(0) > 1 {
				y = f.Copy(y)
			}
			y = f.Call("proj_in", y)
		}
		for i := range blocks {
			y = f.Call("transformer_blocks."+strconv.Itoa(i), y, f.Beside(0))
		}
		if u.Linear {
			y = f.Call("proj_out", y)
		}
		y = f.View(f.Copy(f.Permute(y, 0, 2, 1)), x.Shape...)
		if !u.Linear {
			y = f.Call("proj_out", y)
		}
		return f.Add(y, x)
	}}
}

// block returns a block of a transformer: attention to itself and to the text, and a gated MLP.
func (u UNet) block(l UNetLevel) tape.Layer {
	n, norm := l.Channels, layer.LayerNorm{Size: l.Channels}
	parts := tape.Sequential{
		tape.As("norm1", norm), tape.As("attn1", imageAttention{n, n, l.Heads, false}.layer()),
		tape.As("norm2", norm), tape.As("attn2", imageAttention{n, u.TextDim, l.Heads, false}.layer()),
		tape.As("norm3", norm), tape.As("ff.net.0.proj", layer.Linear{In: n, Out: 8 * n}), tape.As("ff.net.2", layer.Linear{In: 4 * n, Out: n}),
	}
	return tape.Module{Name: "TransformerBlock", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Call("norm1", x)
		x = f.Add(x, f.Call("attn1", y, y))
		seen := f.Call("attn2", f.Call("norm2", x), f.Beside(0))
		x = f.Add(x, seen)
		y = f.Call("norm3", x)
		z := f.Add(x, f.Call("ff.net.2", gated(f, layer.GELU{}, f.Call("ff.net.0.proj", y))))
		f.Hold(seen, y)
		return z
	}}
}

// Inputs are noisy latent images of the usual size, and texts.
func (u UNet) Inputs(batch, length int) []family.Input {
	return []family.Input{family.Reals(batch, u.Channels, u.Side, u.Side), family.Reals(batch, cmp.Or(length, usualClip), u.TextDim)}
}

// usualClip is the number of tokens that CLIP reads.
const usualClip = 77

// LatentSide is the side of the latent images.
func (u UNet) LatentSide() int { return u.Side }

// Resized returns the U-Net for images with another side, which each level but the last halves.
func (u UNet) Resized(side int) (family.Images, error) {
	if _, err := family.LatentSide(side, 1); err != nil {
		return u, err
	}
	var err error
	u.Side, err = family.LatentSide(side, 1<<(len(u.Levels)-1))
	return u, err
}

func readUNet(c *family.Config, a *family.Model) {
	widths, depth, groups := convolutions(c, 2)
	u := UNet{Depth: depth, Groups: groups, Linear: c.Flag("use_linear_projection", false)}
	c.Number(&u.Channels, "in_channels", 4)
	c.Number(&u.Out, "out_channels", 4)
	c.Number(&u.TextDim, "cross_attention_dim", 1280)
	c.Number(&u.Side, "sample_size", 64)
	if c.Has("time_cond_proj_dim") {
		c.Number(&u.Guided, "time_cond_proj_dim", 0)
	}
	unetSettings(c)
	if c.Word("addition_embed_type") != "" {
		c.Number(&u.AddedDim, "projection_class_embeddings_input_dim", 0)
	}
	u.Levels, u.Middle = unetLevels(c, widths)
	a.Images = u
}

// unetSettings keeps an error for settings that Stable Diffusion's U-Nets do not have.
func unetSettings(c *family.Config) {
	c.Harmless("addition_time_embed_dim") // projection_class_embeddings_input_dim has the width that it leads to
	c.Harmless("upcast_attention")        // scaled_dot_product_attention does not upcast
	for _, s := range []struct{ key, usual string }{
		{"mid_block_type", "UNetMidBlock2DCrossAttn"}, {"class_embed_type", ""}, {"encoder_hid_dim_type", ""},
		{"time_embedding_type", "positional"}, {"resnet_time_scale_shift", "default"}, {"addition_embed_type", "text_time"}, {"attention_type", "default"}, {"act_fn", "silu"},
		{"time_embedding_act_fn", ""}, {"cross_attention_norm", ""},
	} {
		if value := cmp.Or(c.Word(s.key), s.usual); value != s.usual {
			c.Unknown(s.key, value)
		}
	}
	for _, key := range []string{"only_cross_attention", "dual_cross_attention", "class_embeddings_concat", "mid_block_only_cross_attention", "resnet_skip_time_act"} {
		if c.Flag(key, false) {
			c.Unknown(key, "true")
		}
	}
	for _, key := range []string{"num_class_embeds", "time_embedding_dim", "encoder_hid_dim", "num_attention_heads", "reverse_transformer_layers_per_block"} {
		if c.Has(key) {
			c.Unknown(key, string(c.Value(key)))
		}
	}
	for _, key := range []string{"conv_in_kernel", "conv_out_kernel"} {
		if n := c.Whole(key, 3); n != 3 {
			c.Unknown(key, strconv.Itoa(n))
		}
	}
}

// unetLevels reads the levels and the blocks in the middle. The way up has the same levels as the
// way down.
func unetLevels(c *family.Config, widths []int) (levels []UNetLevel, middle int) {
	n := len(widths)
	known := []string{"CrossAttnDownBlock2D", "DownBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"}
	down, up := blockKinds(c, "down_block_types", n, known...), blockKinds(c, "up_block_types", n, known...)
	heads, blocks := perBlock(c, "attention_head_dim", n, 8), perBlock(c, "transformer_layers_per_block", n, 1)
	for i, width := range widths {
		plain := down[i] == "DownBlock2D"
		if plain != (up[n-1-i] == "UpBlock2D") {
			c.Unknown("up_block_types", "another order than that of down_block_types")
		}
		if blocks[i] > family.MaxBlocks {
			c.Fail("transformer_layers_per_block", "%d blocks, more than %d", blocks[i], family.MaxBlocks)
		}
		l := UNetLevel{Channels: width, Heads: heads[i], Blocks: blocks[i]} // attention_head_dim is the number of heads
		if middle = l.Blocks; plain {
			l.Blocks = 0
		}
		levels = append(levels, l)
	}
	return levels, middle
}
