package history

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Sizes of torchao's NF4 (dtypes/nf4tensor.py, in 0.18 quantization/quantize_/workflows/nf4/nf4_tensor.py).
const (
	valuesOfNF4  = 16      // each element is compared with all of them
	blockOfNF4   = 64      // elements that share a scale
	chunkOfNF4   = 1 << 20 // elements that are compared at a time, since 0.2
	indexOfTorch = 8       // bytes of an index that min returns
)

// quantizes reports whether torchao makes the parameter with this number from a whole one.
func (y *history) quantizes(i int) bool {
	c := y.t.Cfg
	if c.Libraries.TorchAO == [3]int{} || c.Quantized == nil || c.Sharding.Pipeline > 1 {
		return false
	}
	p := &y.h.Each[i]
	return p.FourBits && setting.FourBits(c.Quantized.At(y.t.Decl.Modules[p.Module].Path))
}

// toNF4 records how torchao makes a weight of some bytes in NF4 from one on the device in the type of the model's weights
// (NF4Tensor.from_tensor of 0.10). It leaves out tensors of a few bytes for each block. What is freed stays in the cache.
func (y *history) toNF4(weight int64) {
	n, width := 2*weight, int64(y.t.Cfg.Weights.Bits())/8
	whole := y.Alloc(n * width)
	for range 2 { // get_block_absmax, for double_quantize_scalers and for convert_to_norm_float_weight
		made := y.AllocAll(nil, n*width, n/blockOfNF4*width, n/blockOfNF4*indexOfTorch)
		y.FreeAll(made)
	}
	scaled := y.Alloc(n * width)
	var indices int32
	if v := y.t.Cfg.Libraries.TorchAO; v[0] == 0 && v[1] < 2 { // all at once
		indices = y.nearest(n, width)
		shifted := y.Alloc(n / 2 * indexOfTorch)
		joined := y.Alloc(n / 2 * indexOfTorch)
		y.Free(shifted)
		y.Alloc(weight)
		y.Free(joined)
	} else {
		indices = y.Alloc(n)
		chunk := min(n, chunkOfNF4) // later ones take the blocks of the first
		found := y.nearest(chunk, width)
		narrow := y.Alloc(chunk)
		y.Free(found)
		y.Free(narrow)
		shifted := y.Alloc(n / 2)
		y.Alloc(weight)
		y.Free(shifted)
	}
	y.Free(indices)
	y.Free(scaled)
	y.Free(whole)
}

// nearest records the search for the nearest values of n elements, and returns the handle of their indices
// (quantize_tensor_nearest): differences from all values, and their absolute values.
func (y *history) nearest(n, width int64) int32 {
	differences := y.Alloc(valuesOfNF4 * n * width)
	absolute := y.Alloc(valuesOfNF4 * n * width)
	y.Free(differences)
	least, indices := y.Alloc(n*width), y.Alloc(n*indexOfTorch)
	y.Free(least)
	y.Free(absolute)
	return indices
}
