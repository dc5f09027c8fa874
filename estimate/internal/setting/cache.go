package setting

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// KVConfig is estimate.KVConfig.
type KVConfig struct {
	Batch         int
	ContextLength int
	Layers        int
	KVHeads       int
	HeadSize      int
	ValueSize     int
	Latent        int
	Window        int
	Full          int
	Fixed         int
	FixedType     alloc.DType
	DType         alloc.DType
	Blocks        Blocks
	Values        Blocks
}

// Blocks says how a quantized type is stored: each block of Elements takes Bytes, scales included.
// The zero value means no quantized type.
type Blocks struct{ Elements, Bytes int }

// The quantized types in which llama.cpp can store keys and values (ggml/src/ggml-common.h). A head
// of 64 elements takes 68 bytes in Q8_0.
var (
	Q8_0 = Blocks{32, 34}
	Q5_1 = Blocks{32, 24}
	Q5_0 = Blocks{32, 22}
	Q4_1 = Blocks{32, 20}
	Q4_0 = Blocks{32, 18}
)

// Kept is the memory of a key/value cache by what it is for.
type Kept struct {
	Keys, Values alloc.Bytes // of tokens; a latent counts as keys
	Fixed        alloc.Bytes // does not grow with the context length
}

// All is the sum.
func (k Kept) All() alloc.Bytes { return k.Keys + k.Values + k.Fixed }

// KVCache returns the memory of the keys and values of all tokens: layers x batch x tokens x KV heads elements of HeadSize
// for keys and of ValueSize for values, or layers x batch x tokens x latent elements if Latent is set. Layers
// with a Window keep no more tokens than that. The error says what is wrong with the configuration.
func KVCache(c KVConfig) (Kept, error) {
	err := c.check()
	var k Kept
	if err == nil {
		k.Fixed, err = c.fixed()
	}
	if err == nil && c.Latent > 0 {
		k.Keys, err = c.tokens(c.Blocks, c.Batch, c.Latent)
	} else if err == nil {
		if k.Keys, err = c.tokens(c.Blocks, c.Batch, c.KVHeads, c.HeadSize); err == nil {
			k.Values, err = c.tokens(Or(c.Values, c.Blocks), c.Batch, c.KVHeads, Or(c.ValueSize, c.HeadSize))
		}
	}
	if err == nil && max(k.Keys, k.Values, k.Fixed, k.All()) > MaxTotal {
		err = fmt.Errorf("it takes more than %v", alloc.Bytes(MaxTotal))
	}
	if err != nil {
		return Kept{}, fmt.Errorf("estimate the key/value cache: %w", err)
	}
	return k, nil
}

// fixed returns the part that does not grow with the context length.
func (c KVConfig) fixed() (alloc.Bytes, error) {
	n, err := alloc.Shape{c.Batch, c.Fixed}.Bytes(Or(c.FixedType, Or(c.DType, alloc.Float16)))
	return min(n, MaxTotal+1), err
}

// tokens returns the size of tensors with these elements for each token of each layer.
func (c KVConfig) tokens(b Blocks, each ...int) (alloc.Bytes, error) {
	full := c.Layers
	if c.Window > 0 {
		full = c.Full
	}
	var all alloc.Bytes
	for _, of := range [][2]int{{full, c.ContextLength}, {c.Layers - full, min(c.ContextLength, c.Window)}} {
		n, err := c.bytes(b, append(alloc.Shape(each[:len(each):len(each)]), of[:]...))
		if err != nil {
			return 0, err
		}
		all += min(n, MaxTotal+1)
	}
	return min(all, MaxTotal+1), nil
}

// bytes returns the size of a tensor of keys or values.
func (c KVConfig) bytes(b Blocks, shape alloc.Shape) (alloc.Bytes, error) {
	if b == (Blocks{}) {
		return shape.Bytes(Or(c.DType, alloc.Float16))
	}
	n, err := shape.Elements()
	if err != nil || n > MaxTotal/int64(b.Bytes) {
		return MaxTotal + 1, err
	}
	return alloc.Bytes(n / int64(b.Elements) * int64(b.Bytes)), nil
}

func (c KVConfig) check() error {
	for _, f := range []struct {
		name         string
		value, least int
	}{
		{"Batch", c.Batch, 1}, {"ContextLength", c.ContextLength, 1}, {"Layers", c.Layers, 1}, {"Window", c.Window, 0},
		{"Full", c.Full, 0}, {"Fixed", c.Fixed, 0}, {"Latent", c.Latent, 0}, {"ValueSize", c.ValueSize, 0}, {"KVHeads", c.KVHeads, 1}, {"HeadSize", c.HeadSize, 1},
	} {
		if none := c.Fixed > 0 && (f.name == "Layers" || f.name == "KVHeads" || f.name == "HeadSize"); none && f.value == 0 {
			continue // nothing grows with the context length
		}
		if f.value < f.least && (c.Latent == 0 || f.name != "KVHeads" && f.name != "HeadSize") {
			return fmt.Errorf("%s is %d: want %d or more", f.name, f.value, f.least)
		}
	}
	width := func(size int) int { return Or(c.Latent, c.KVHeads*min(size, MaxField)) }
	if err := c.Blocks.check("Blocks", width(c.HeadSize)); err != nil {
		return err
	}
	if err := Or(c.Values, c.Blocks).check("Values", width(Or(c.ValueSize, c.HeadSize))); err != nil {
		return err
	}
	if c.Full > c.Layers {
		return fmt.Errorf("%s is %d: want at most the %d Layers", "Full", c.Full, c.Layers)
	}
	return nil
}

// check returns an error unless the blocks divide the elements of a token.
func (b Blocks) check(name string, row int) error {
	switch {
	case b == Blocks{}:
		return nil
	case b.Elements < 1 || b.Bytes < 1:
		return fmt.Errorf("%s are %+v: want 1 or more of both", name, b)
	case row%b.Elements != 0:
		return fmt.Errorf("%s of %d elements do not divide the %d of a token", name, b.Elements, row)
	}
	return nil
}

// Shard returns one device's part. Tensor parallelism divides the heads, so that each device has at
// least one, and a pipeline divides the layers. Each device has the whole latent.
func (c KVConfig) Shard(s Sharding) KVConfig {
	c.KVHeads = int(Part(int64(c.KVHeads), s.Tensor))
	c.Layers = int(Part(int64(c.Layers), s.Pipeline))
	c.Fixed = int(Part(Part(int64(c.Fixed), s.Tensor), s.Pipeline))
	c.Full = int(Part(int64(c.Full), s.Pipeline))
	return c
}
