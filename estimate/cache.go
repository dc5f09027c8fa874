package estimate

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// CacheConfig describes the key/value cache of a transformer that is served.
type CacheConfig struct {
	Batch    int         // sequences at once
	Context  int         // tokens of each, prompt and answer together
	Layers   int         // that attend
	KVHeads  int         // heads of keys and values, fewer than those of queries in grouped attention
	HeadSize int         // elements of one head
	Latent   int         // elements kept of a token in place of keys and values, by multi-head latent attention; 0 for none
	Window   int         // of sliding window attention, which keeps no older tokens; 0 for none
	Full     int         // of the Layers, those that attend to all tokens where others have the Window
	DType    alloc.DType // the zero value is float16
}

// KVCache returns the memory of the keys and values that are kept of all
// tokens: 2 x layers x batch x context x KV heads x head size elements, and
// layers x batch x context x latent elements where there is a Latent. Layers with a
// Window keep no more tokens than that.
func KVCache(c CacheConfig) (alloc.Bytes, error) {
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
	whole, err := append(each[:len(each):len(each)], full, c.Context).Bytes(or(c.DType, alloc.Float16))
	if err != nil {
		return 0, fmt.Errorf("estimate the key/value cache: %w", err)
	}
	windowed, err := append(each, c.Layers-full, min(c.Context, c.Window)).Bytes(or(c.DType, alloc.Float16))
	if err == nil && (whole > maxTotal || windowed > maxTotal-whole) {
		err = fmt.Errorf("it takes more than %v", alloc.Bytes(maxTotal))
	}
	if err != nil {
		return 0, fmt.Errorf("estimate the key/value cache: %w", err)
	}
	return whole + windowed, nil
}

func (c CacheConfig) check() error {
	for _, f := range []struct {
		name         string
		value, least int
	}{
		{"Batch", c.Batch, 1}, {"Context", c.Context, 1}, {"Layers", c.Layers, 1}, {"Window", c.Window, 0},
		{"Full", c.Full, 0}, {"Latent", c.Latent, 0}, {"KVHeads", c.KVHeads, 1}, {"HeadSize", c.HeadSize, 1},
	} {
		if f.value < f.least && (c.Latent == 0 || f.name != "KVHeads" && f.name != "HeadSize") {
			return fmt.Errorf("%s is %d: want %d or more", f.name, f.value, f.least)
		}
	}
	if c.Full > c.Layers {
		return fmt.Errorf("%s is %d: want at most the %d Layers", "Full", c.Full, c.Layers)
	}
	return nil
}

// shard is the part of one device: tensor parallelism divides the heads, of
// which each device has one at least, and a pipeline the layers. A latent is whole
// on each device.
func (c CacheConfig) shard(s Sharding) CacheConfig {
	c.KVHeads = int(part(int64(c.KVHeads), s.Tensor))
	c.Layers = int(part(int64(c.Layers), s.Pipeline))
	c.Full = int(part(int64(c.Full), s.Pipeline))
	return c
}
