package diffusion

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
)

// perBlock reads a number for each of n blocks. The file may have one for all, or none.
func perBlock(c *family.Config, key string, n, without int) []int {
	blocks := slices.Repeat([]int{without}, n)
	var list []family.Whole
	if text := c.Value(key); text == nil {
		return blocks
	} else if json.Unmarshal(text, &list) != nil {
		c.Number(&blocks[0], key, 0)
		return slices.Repeat(blocks[:1], n)
	}
	if len(list) != n && len(list) > 1 {
		c.Fail(key, "it has %d entries for %d blocks", len(list), n)
		return blocks
	}
	for i := range list {
		c.Bounded(&blocks[i], key, int(list[i]))
	}
	if len(list) == 1 {
		return slices.Repeat(blocks[:1], n)
	}
	return blocks
}

// convolutions reads the widths of the blocks and what else all convolutional models of diffusers have.
func convolutions(c *family.Config, depth int) (channels []int, layers, groups int) {
	channels = widths(c, "block_out_channels")
	if act := cmp.Or(c.Word("act_fn"), "silu"); act != "silu" && act != "swish" {
		c.Unknown("act_fn", act)
	}
	c.Number(&layers, "layers_per_block", depth)
	c.Number(&groups, "norm_num_groups", 32)
	if layers > family.MaxBlocks {
		c.Fail("layers_per_block", "%d blocks, more than %d", layers, family.MaxBlocks)
	}
	return channels, layers, groups
}

// widths reads the widths of 1 to 16 blocks.
func widths(c *family.Config, key string) []int {
	var blocks []family.Whole
	c.Decode(key, &blocks)
	if len(blocks) == 0 || len(blocks) > maxLevels {
		c.Fail(key, "it has %d entries: want 1 to %d", len(blocks), maxLevels)
		return []int{1}
	}
	widths := make([]int, len(blocks))
	for i, n := range blocks {
		c.Bounded(&widths[i], key, int(n))
	}
	return widths
}

// blockKinds reads the kinds of n blocks, each of which must be one of known.
func blockKinds(c *family.Config, key string, n int, known ...string) []string {
	kinds := c.Names(key)
	if len(kinds) != n {
		c.Fail(key, "it has %d entries for %d blocks", len(kinds), n)
		return make([]string, n)
	}
	for _, kind := range kinds {
		if !slices.Contains(known, kind) {
			c.Unknown(key, kind)
		}
	}
	return kinds
}
