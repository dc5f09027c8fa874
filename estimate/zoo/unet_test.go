package zoo_test

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

func conv(in, out, stride, padding int) estimate.Conv2d {
	return estimate.Conv2d{In: in, Out: out, Kernel: 3, Stride: stride, Padding: padding}
}

// unetBlock is a residual block that the time is added to, and attention where wanted.
func unetBlock(in, out int, attends bool) estimate.Module {
	norm := func(n int) estimate.Layer {
		return estimate.Sequential{estimate.GroupNorm{Groups: 32, Channels: n}, estimate.SiLU{}}
	}
	parts := estimate.Sequential{
		estimate.As("norm1", norm(in)), estimate.As("conv1", conv(in, out, 1, 1)), estimate.As("time", estimate.Linear{In: 512, Out: out}),
		estimate.As("norm2", norm(out)), estimate.As("conv2", conv(out, out, 1, 1)),
	}
	if in != out {
		parts = append(parts, estimate.As("shortcut", estimate.Conv2d{In: in, Out: out, Kernel: 1}))
	}
	if attends {
		parts = append(parts, estimate.As("attention", unetAttention(out)))
	}
	return estimate.Module{Name: "ResnetBlock2D", Parts: parts, Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
		y := f.Call("conv1", f.Call("norm1", x))
		time := f.Call("time", f.Apply(estimate.SiLU{}, f.Beside(0)))
		y = f.Add(y, f.View(time, time.Dim(0), out, 1, 1))
		y = f.Call("conv2", f.Call("norm2", y))
		if in != out {
			x = f.Call("shortcut", x)
		}
		if y = f.Scale(f.Add(x, y)); attends {
			y = f.Call("attention", y)
		}
		return y
	}}
}

// unetAttention is attention of pixels, with one head; each projection copies the pixels in order.
func unetAttention(n int) estimate.Module {
	linear := estimate.Linear{In: n, Out: n}
	return estimate.Module{Name: "Attention", Parts: estimate.Sequential{
		estimate.As("group_norm", estimate.GroupNorm{Groups: 32, Channels: n}),
		estimate.As("to_q", linear), estimate.As("to_k", linear), estimate.As("to_v", linear), estimate.As("to_out", linear),
	}, Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
		pixels := x.Dim(2) * x.Dim(3)
		y := f.Permute(f.Call("group_norm", f.View(x, x.Dim(0), n, pixels)), 0, 2, 1)
		q, k, v := f.Call("to_q", f.Copy(y)), f.Call("to_k", f.Copy(y)), f.Call("to_v", f.Copy(y))
		y = f.Permute(f.Call("to_out", f.Attention(q, k, v, 1, n)), 0, 2, 1)
		return f.Scale(f.Add(f.View(y, x.Shape...), x))
	}}
}

// unet is diffusers' UNet2DModel as google/ddpm-cifar10-32 has it (arXiv:2006.11239, appendix B).
func unet() []estimate.Layer {
	widths := []int{128, 256, 256, 256}
	parts := estimate.Sequential{
		estimate.As("time", estimate.Sequential{estimate.Linear{In: 128, Out: 512}, estimate.SiLU{}, estimate.Linear{In: 512, Out: 512}}),
		estimate.As("conv_in", conv(3, 128, 1, 1)),
	}
	add := func(l estimate.Layer) string {
		name := fmt.Sprint("block", len(parts))
		parts = append(parts, estimate.As(name, l))
		return name
	}
	var down, up []string
	joins := map[string]bool{} // what was skipped to what came up
	in, skipped := widths[0], []int{widths[0]}
	for i, out := range widths {
		for range 2 {
			down, in = append(down, add(unetBlock(in, out, i == 1))), out
			skipped = append(skipped, out)
		}
		if i < 3 {
			down, skipped = append(down, add(estimate.Sequential{padded{}, conv(out, out, 2, 0)})), append(skipped, out)
		}
	}
	middle := []string{add(unetBlock(in, in, true)), add(unetBlock(in, in, false))}
	for i := range widths {
		out := widths[3-i]
		for range 3 {
			last := len(skipped) - 1
			name := add(unetBlock(in+skipped[last], out, i == 2))
			up, skipped, in = append(up, name), skipped[:last], out
			joins[name] = true
		}
		if i < 3 {
			up = append(up, add(estimate.Sequential{estimate.Upsample{Scale: 2}, conv(out, out, 1, 1)}))
		}
	}
	parts = append(parts, estimate.As("out", estimate.Sequential{estimate.GroupNorm{Groups: 32, Channels: in}, estimate.SiLU{}, conv(in, 3, 1, 1)}))
	return []estimate.Layer{estimate.Module{Name: "UNet2D", Parts: parts, Run: func(f *estimate.Flow, x estimate.Tensor) estimate.Tensor {
		f.Input(1) // the numbers of the steps, of which waves are made
		time := f.Call("time", f.Const(alloc.Float32, x.Dim(0), 128))
		x = f.Call("conv_in", x)
		skips := []estimate.Tensor{x}
		for _, name := range down {
			x = f.Call(name, x, time)
			skips = append(skips, x)
		}
		for _, name := range middle {
			x = f.Call(name, x, time)
		}
		for _, name := range up {
			if joins[name] {
				x, skips = f.Cat(1, x, skips[len(skips)-1]), skips[:len(skips)-1]
			}
			x = f.Call(name, x, time)
		}
		return f.Call("out", x)
	}}}
}

// padded adds a row and a column of zeros.
type padded struct{}

func (padded) Declare(*estimate.Declaration) {}

func (padded) Forward(t *estimate.Tape, x estimate.Tensor) (estimate.Tensor, error) {
	shape := x.Shape.Clone()
	shape[2], shape[3] = shape[2]+1, shape[3]+1
	return t.Op(estimate.Op{In: []estimate.Tensor{x}, Shape: shape})
}
