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
	Window   int         // of sliding window attention, which keeps no older tokens; 0 for none
	DType    alloc.DType // the zero value is float16
}

// KVCache returns the memory of the keys and values that are kept of all
// tokens: 2 x layers x batch x context x KV heads x head size elements.
func KVCache(c CacheConfig) (alloc.Bytes, error) {
	for _, f := range []struct {
		name  string
		value int
	}{
		{"Batch", c.Batch}, {"Context", c.Context}, {"Layers", c.Layers},
		{"KVHeads", c.KVHeads}, {"HeadSize", c.HeadSize},
	} {
		if f.value <= 0 {
			return 0, fmt.Errorf("estimate the key/value cache: %s is %d: want 1 or more", f.name, f.value)
		}
	}
	if c.Window < 0 {
		return 0, fmt.Errorf("estimate the key/value cache: Window is %d: want 0 for none, or more", c.Window)
	}
	tokens := c.Context
	if c.Window > 0 {
		tokens = min(tokens, c.Window)
	}
	shape := alloc.Shape{2, c.Layers, c.Batch, tokens, c.KVHeads, c.HeadSize}
	b, err := shape.Bytes(or(c.DType, alloc.Float16))
	if err == nil && b > maxTotal {
		err = fmt.Errorf("it takes more than %v", alloc.Bytes(maxTotal))
	}
	if err != nil {
		return 0, fmt.Errorf("estimate the key/value cache: %w", err)
	}
	return b, nil
}

// shard is the part of one device: tensor parallelism divides the heads, of
// which each device has one at least, and a pipeline the layers.
func (c CacheConfig) shard(s Sharding) CacheConfig {
	c.KVHeads = int(part(int64(c.KVHeads), s.Tensor))
	c.Layers = int(part(int64(c.Layers), s.Pipeline))
	return c
}
