package zoo_test

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// normConv is group norm, activation and convolution.
func normConv(in, out int) tape.Layer {
	return tape.Sequential{layer.GroupNorm{Groups: 32, Channels: in}, layer.SiLU{}, layer.Conv2d{In: in, Out: out, Kernel: 3, Padding: 1}}
}

// unetBlock is a residual block that the time is added to and, where it attends, attention of the pixels.
func unetBlock(in, out, side int, attends bool) tape.Layer {
	block := tape.Module{Name: "ResnetBlock2D", Parts: tape.Sequential{
		tape.As("in", normConv(in, out)), tape.As("out", normConv(out, out)),
		tape.As("time", tape.Sequential{layer.SiLU{}, layer.Linear{In: 512, Out: out}, layer.Reshape{out, 1, 1}}),
		tape.As("shortcut", tape.If(in != out, layer.Conv2d{In: in, Out: out, Kernel: 1})),
	}, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Add(f.Call("in", x), f.Call("time", f.Beside(0)))
		return f.Scale(f.Add(f.Call("shortcut", x), f.Call("out", y)))
	}}
	attention := tape.Residual{Body: tape.Sequential{
		layer.GroupNorm{Groups: 32, Channels: out}, layer.Reshape{out, -1}, tape.Permute{0, 2, 1},
		layer.Attention{Hidden: out, Heads: 1}, tape.Permute{0, 2, 1}, layer.Reshape{out, side, side},
	}}
	return tape.Sequential{block, tape.If(attends, attention)}
}

// unetLevel is the blocks at a resolution and, between them, all that is below it.
func unetLevel(in, side int, widths ...int) tape.Layer {
	out, below := widths[0], widths[min(1, len(widths)-1)]
	inner := tape.Sequential{unetBlock(out, out, side, true), unetBlock(out, out, side, false)}
	if len(widths) > 1 {
		inner = tape.Sequential{
			layer.ZeroPad2d{0, 1, 0, 1}, layer.Conv2d{In: out, Out: out, Kernel: 3, Stride: 2},
			unetLevel(out, side/2, widths[1:]...),
			layer.Upsample(2), layer.Conv2d{In: below, Out: below, Kernel: 3, Padding: 1},
		}
	}
	block := func(in int) tape.Layer { return unetBlock(in, out, side, side == 16) }
	return tape.Module{Name: "Level", Parts: tape.Sequential{
		tape.As("down1", block(in)), tape.As("down2", block(out)), tape.As("inner", inner),
		tape.As("up1", block(below+out)), tape.As("up2", block(out+out)), tape.As("up3", block(out+in)),
	}, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Call("down1", x)
		z := f.Call("down2", y)
		up := f.Call("up1", f.Cat(1, f.Call("inner", z), z))
		return f.Call("up3", f.Cat(1, f.Call("up2", f.Cat(1, up, y)), x))
	}}
}

// unet is diffusers' UNet2DModel as google/ddpm-cifar10-32 has it (arXiv:2006.11239, appendix B).
func unet() []tape.Layer {
	return []tape.Layer{tape.Module{Name: "UNet2D", Parts: tape.Sequential{
		tape.As("time", tape.Sequential{layer.Linear{In: 128, Out: 512}, layer.SiLU{}, layer.Linear{In: 512, Out: 512}}),
		tape.As("in", layer.Conv2d{In: 3, Out: 128, Kernel: 3, Padding: 1}),
		tape.As("levels", unetLevel(128, 32, 128, 256, 256, 256)), tape.As("out", normConv(128, 3)),
	}, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		time := f.Call("time", f.Const(0, f.Input(1).Dim(0), 128)) // waves of the numbers of the steps
		return f.Call("out", f.Call("levels", f.Call("in", x), time))
	}}}
}
