package zoo_test

import "github.com/gpumemtrack/gpumemtrack/estimate"

// normConv is group norm, activation and convolution.
func normConv(in, out int) estimate.Layer {
	return estimate.Sequential{estimate.GroupNorm{Groups: 32, Channels: in}, estimate.SiLU{}, estimate.Conv2d{In: in, Out: out, Kernel: 3, Padding: 1}}
}

// unetBlock is a residual block that the time is added to and, where it attends, attention of the pixels.
func unetBlock(in, out, side int, attends bool) estimate.Layer {
	block := estimate.Module{Name: "ResnetBlock2D", Parts: estimate.Sequential{
		estimate.As("in", normConv(in, out)), estimate.As("out", normConv(out, out)),
		estimate.As("time", estimate.Sequential{estimate.SiLU{}, estimate.Linear{In: 512, Out: out}, estimate.Reshape{Dims: []int{out, 1, 1}}}),
		estimate.As("shortcut", estimate.If(in != out, estimate.Conv2d{In: in, Out: out, Kernel: 1})),
	}, Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
		y := f.Add(f.Call("in", x), f.Call("time", f.Beside(0)))
		return f.Scale(f.Add(f.Call("shortcut", x), f.Call("out", y)))
	}}
	attention := estimate.Residual{Body: estimate.Sequential{
		estimate.GroupNorm{Groups: 32, Channels: out}, estimate.Reshape{Dims: []int{out, -1}}, estimate.Permute{Dims: []int{0, 2, 1}},
		estimate.Attention{Hidden: out, Heads: 1}, estimate.Permute{Dims: []int{0, 2, 1}}, estimate.Reshape{Dims: []int{out, side, side}},
	}}
	return estimate.Sequential{block, estimate.If(attends, attention)}
}

// unetLevel is the blocks at a resolution and, between them, all that is below it.
func unetLevel(in, side int, widths ...int) estimate.Layer {
	out, below := widths[0], widths[min(1, len(widths)-1)]
	inner := estimate.Sequential{unetBlock(out, out, side, true), unetBlock(out, out, side, false)}
	if len(widths) > 1 {
		inner = estimate.Sequential{
			estimate.ZeroPad2d{Right: 1, Bottom: 1}, estimate.Conv2d{In: out, Out: out, Kernel: 3, Stride: 2},
			unetLevel(out, side/2, widths[1:]...),
			estimate.Upsample{Scale: 2}, estimate.Conv2d{In: below, Out: below, Kernel: 3, Padding: 1},
		}
	}
	block := func(in int) estimate.Layer { return unetBlock(in, out, side, side == 16) }
	return estimate.Module{Name: "Level", Parts: estimate.Sequential{
		estimate.As("down1", block(in)), estimate.As("down2", block(out)), estimate.As("inner", inner),
		estimate.As("up1", block(below+out)), estimate.As("up2", block(out+out)), estimate.As("up3", block(out+in)),
	}, Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
		y := f.Call("down1", x)
		z := f.Call("down2", y)
		up := f.Call("up1", f.Cat(1, f.Call("inner", z), z))
		return f.Call("up3", f.Cat(1, f.Call("up2", f.Cat(1, up, y)), x))
	}}
}

// unet is diffusers' UNet2DModel as google/ddpm-cifar10-32 has it (arXiv:2006.11239, appendix B).
func unet() []estimate.Layer {
	return []estimate.Layer{estimate.Module{Name: "UNet2D", Parts: estimate.Sequential{
		estimate.As("time", estimate.Sequential{estimate.Linear{In: 128, Out: 512}, estimate.SiLU{}, estimate.Linear{In: 512, Out: 512}}),
		estimate.As("in", estimate.Conv2d{In: 3, Out: 128, Kernel: 3, Padding: 1}),
		estimate.As("levels", unetLevel(128, 32, 128, 256, 256, 256)), estimate.As("out", normConv(128, 3)),
	}, Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
		time := f.Call("time", f.Const(0, f.Input(1).Dim(0), 128)) // waves of the numbers of the steps
		return f.Call("out", f.Call("levels", f.Call("in", x), time))
	}}}
}
