package layer

import (
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// AddQuantized declares the weight of a Linear, or of experts, in the format of the quantized base
// model.
func AddQuantized(d *tape.Declaration, p tape.Param) {
	b := d.Base()
	n, in := setting.FLOPs(p.Shape...), p.Shape[len(p.Shape)-1]
	blocks, out := int(min((n+63)/64, setting.MaxField)), int(min(n/int64(max(1, in)), setting.MaxField))
	of := strings.TrimSuffix(p.Name, "weight")
	buffer := func(name string, t alloc.DType, dims ...int) {
		d.Add(tape.Param{Name: of + name, Shape: dims, DType: t, Buffer: true})
	}
	switch b {
	case setting.Int8:
		p.DType = alloc.Int8
		buffer("SCB", alloc.Float32, out)
	case setting.NF4:
		p.DType = alloc.Int4
		buffer("absmax", alloc.Float32, blocks)
	case setting.NF4Double:
		p.DType = alloc.Int4
		buffer("absmax", alloc.Uint8, blocks)
		buffer("nested_absmax", alloc.Float32, (blocks+255)/256)
	case setting.GPTQ, setting.AWQ:
		groups := (in + setting.GroupOfGPTQ - 1) / setting.GroupOfGPTQ
		p.DType = alloc.Int4
		buffer("qzeros", alloc.Int4, groups, out)
		buffer("scales", alloc.Float16, groups, out)
		if b == setting.GPTQ {
			buffer("g_idx", alloc.Int32, in)
		}
	}
	d.Add(p)
}

// quantizedReturns returns the output type of a layer with quantized weights that gets x and
// computes in d. The Linear4bit of bitsandbytes casts its output back to the type of x.
func quantizedReturns(t *tape.Tape, x tape.Tensor, d alloc.DType) alloc.DType {
	if setting.FourBits(t.Cfg.Quantized.At(t.DeclaredPath())) {
		return x.DType
	}
	return d
}

// quantizedProduct completes the product o with a quantized weight: the type that it computes in,
// and the tensors that it makes.
func quantizedProduct(t *tape.Tape, o *tape.Op, weight alloc.Shape) {
	q, base := t.Cfg.Quantized, t.Cfg.Quantized.At(t.DeclaredPath())
	o.DType = setting.Or(q.Computes, o.DType)
	if x := o.In[0]; x.DType != o.DType && setting.IsFloat(x.DType) {
		o.In[0] = t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, DType: o.DType})
	}
	x, whole := o.In[0], t.Whole(weight, o.DType)
	if x.NeedsGrad() {
		keepInput(t, o, x)
	}
	if base == setting.Int8 { // bitsandbytes/autograd/_functions.py, MatMul8bitLt: two copies of the input in 8 bits, by rows and by columns, and the product in 32 bits
		o.BackwardWorkspace = whole
		o.Workspace = min(alloc.Bytes(setting.FLOPs(x.Shape...)), setting.MaxTotal) + min(4*alloc.Bytes(setting.FLOPs(o.Shape...)), setting.MaxTotal)
		o.KeepOwn = []tape.Own{{Shape: x.Shape, DType: alloc.Int8}}
		return
	}
	if base == setting.AWQ {
		o.Workspace = awqWorkspace(t, x, o.Shape, o.DType, whole)
		return
	}
	o.Workspace = whole
	if setting.FourBits(base) && t.Cfg.Libraries.BeforeBitsandbytes(42, 0) && o.DType != alloc.Float16 {
		o.Workspace += t.Whole(weight, alloc.Float16)
	}
}

// awqWorkspace returns the memory that AutoAWQ's product needs besides its result. For many tokens
// that is the unpacked weight, for few the partial results that it adds up
// (awq/modules/linear/gemm.py, FP16_MATMUL_HEURISTIC_CONDITION and split_k_iters).
func awqWorkspace(t *tape.Tape, x tape.Tensor, result alloc.Shape, d alloc.DType, weight alloc.Bytes) alloc.Bytes {
	const many, parts = 1024, 8
	if tokens := setting.FLOPs(x.Shape[:len(x.Shape)-1]...); tokens >= many {
		return weight
	}
	return (parts - 1) * t.Whole(result, d)
}

// keepInput makes the product o keep its input, or notes that it may, depending on the release of
// the library.
func keepInput(t *tape.Tape, o *tape.Op, x tape.Tensor) {
	base := t.Cfg.Quantized.At(t.DeclaredPath())
	libraries := t.Cfg.Libraries
	keeps := setting.FourBits(base) && libraries.BeforeBitsandbytes(43, 2)
	switch known := libraries.Bitsandbytes != [3]int{} || libraries.TorchAO != [3]int{} || t.Cfg.Release.Major > 0 && !t.Cfg.Release.Before(2, 4); {
	case keeps || base == setting.Int8:
		o.Keep = []tape.Tensor{x}
		t.Linger(x)
	case base == setting.GPTQ || base == setting.AWQ || known:
	default:
		t.MayKeep(x)
	}
}
