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
	Latent        int
	Window        int
	Full          int
	Fixed         int
	DType         alloc.DType
	Blocks        Blocks
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

// KVCache returns the memory of the keys and values of all tokens: 2 x layers x batch x tokens x KV
// heads x head size elements, or layers x batch x tokens x latent elements if Latent is set. Layers
// with a Window keep no more tokens than that. The error says what is wrong with the configuration.
func KVCache(c KVConfig) (alloc.Bytes, error) {
	if err := c.check(); err != nil {
		return 0, fmt.Errorf("estimate the key/value cache: %w", err)
	}
	each := alloc.Shape{2, c.Batch, c.KVHeads, c.HeadSize}
	if c.Latent > 0 {
		each = alloc.Shape{c.Batch, c.Latent}
	}
	full := c.Layers
	if c.Window > 0 {
		full = c.Full
	}
	whole, err := c.bytes(append(each[:len(each):len(each)], full, c.ContextLength))
	if err != nil {
		return 0, fmt.Errorf("estimate the key/value cache: %w", err)
	}
	windowed, err := c.bytes(append(each, c.Layers-full, min(c.ContextLength, c.Window)))
	if err == nil {
		windowed, err = c.plusFixed(windowed)
	}
	if err == nil && (whole > MaxTotal || windowed > MaxTotal-whole) {
		err = fmt.Errorf("it takes more than %v", alloc.Bytes(MaxTotal))
	}
	if err != nil {
		return 0, fmt.Errorf("estimate the key/value cache: %w", err)
	}
	return whole + windowed, nil
}

// plusFixed adds to n the part that does not grow with the context length.
func (c KVConfig) plusFixed(n alloc.Bytes) (alloc.Bytes, error) {
	fixed, err := alloc.Shape{c.Batch, c.Fixed}.Bytes(Or(c.DType, alloc.Float16))
	if err != nil || fixed > MaxTotal || n > MaxTotal {
		return MaxTotal + 1, err
	}
	return n + fixed, nil
}

// FixedBytes returns the part of KVCache that does not grow with the context length.
func (c KVConfig) FixedBytes() alloc.Bytes {
	n, err := c.plusFixed(0)
	if err != nil || c.Fixed <= 0 {
		return 0
	}
	return min(n, MaxTotal)
}

// bytes returns the size of a tensor of keys or values.
func (c KVConfig) bytes(shape alloc.Shape) (alloc.Bytes, error) {
	if c.Blocks == (Blocks{}) {
		return shape.Bytes(Or(c.DType, alloc.Float16))
	}
	n, err := shape.Elements()
	if err != nil || n > MaxTotal/int64(c.Blocks.Bytes) {
		return MaxTotal + 1, err
	}
	return alloc.Bytes(n / int64(c.Blocks.Elements) * int64(c.Blocks.Bytes)), nil
}

func (c KVConfig) check() error {
	for _, f := range []struct {
		name         string
		value, least int
	}{
		{"Batch", c.Batch, 1}, {"ContextLength", c.ContextLength, 1}, {"Layers", c.Layers, 1}, {"Window", c.Window, 0},
		{"Full", c.Full, 0}, {"Fixed", c.Fixed, 0}, {"Latent", c.Latent, 0}, {"KVHeads", c.KVHeads, 1}, {"HeadSize", c.HeadSize, 1},
	} {
		if none := c.Fixed > 0 && (f.name == "Layers" || f.name == "KVHeads" || f.name == "HeadSize"); none && f.value == 0 {
			continue // nothing grows with the context length
		}
		if f.value < f.least && (c.Latent == 0 || f.name != "KVHeads" && f.name != "HeadSize") {
			return fmt.Errorf("%s is %d: want %d or more", f.name, f.value, f.least)
		}
	}
	if row := Or(c.Latent, c.KVHeads*min(c.HeadSize, MaxField)); c.Blocks != (Blocks{}) {
		switch {
		case c.Blocks.Elements < 1 || c.Blocks.Bytes < 1:
			return fmt.Errorf("%s are %+v: want 1 or more of both", "Blocks", c.Blocks)
		case row%c.Blocks.Elements != 0:
			return fmt.Errorf("%s of %d elements do not divide the %d of a token", "Blocks", c.Blocks.Elements, row)
		}
	}
	if c.Full > c.Layers {
		return fmt.Errorf("%s is %d: want at most the %d Layers", "Full", c.Full, c.Layers)
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
