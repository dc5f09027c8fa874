package family

import (
	"cmp"
	"encoding/json"
	"slices"
)

// perBlock reads a number for each of n blocks, which may be written once for all, or be absent.
func (c *Config) perBlock(key string, n, without int) []int {
	blocks := slices.Repeat([]int{without}, n)
	var list []whole
	if text := c.value(key); text == nil {
		return blocks
	} else if json.Unmarshal(text, &list) != nil {
		c.number(&blocks[0], key, 0)
		return slices.Repeat(blocks[:1], n)
	}
	if len(list) != n && len(list) > 1 {
		c.fail(key, "it has %d entries for %d blocks", len(list), n)
		return blocks
	}
	for i := range list {
		c.bounded(&blocks[i], key, int(list[i]))
	}
	if len(list) == 1 {
		return slices.Repeat(blocks[:1], n)
	}
	return blocks
}

// convolutions reads the widths of the blocks and what else all convolutional models of diffusers have.
func (c *Config) convolutions(depth int) (widths []int, layers, groups int) {
	var blocks []whole
	c.decode("block_out_channels", &blocks)
	if len(blocks) == 0 || len(blocks) > 16 {
		c.fail("block_out_channels", "it has %d entries: want 1 to 16", len(blocks))
		blocks = []whole{1}
	}
	for _, n := range blocks {
		width := 0
		c.bounded(&width, "block_out_channels", int(n))
		widths = append(widths, width)
	}
	if act := cmp.Or(c.text("act_fn"), "silu"); act != "silu" && act != "swish" {
		c.unknown("act_fn", act)
	}
	c.number(&layers, "layers_per_block", depth)
	c.number(&groups, "norm_num_groups", 32)
	if layers > MaxBlocks {
		c.fail("layers_per_block", "%d blocks, more than %d", layers, MaxBlocks)
	}
	return widths, layers, groups
}

// blockKinds reads the kinds of so many blocks, which must be among those that are known.
func (c *Config) blockKinds(key string, n int, known ...string) []string {
	kinds := c.names(key)
	if len(kinds) != n {
		c.fail(key, "it has %d entries for %d blocks", len(kinds), n)
		return make([]string, n)
	}
	for _, kind := range kinds {
		if !slices.Contains(known, kind) {
			c.unknown(key, kind)
		}
	}
	return kinds
}
