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
func convolutions(c *family.Config, depth int) (widths []int, layers, groups int) {
	var blocks []family.Whole
	c.Decode("block_out_channels", &blocks)
	if len(blocks) == 0 || len(blocks) > 16 {
		c.Fail("block_out_channels", "it has %d entries: want 1 to 16", len(blocks))
		blocks = []family.Whole{1}
	}
	for _, n := range blocks {
		width := 0
		c.Bounded(&width, "block_out_channels", int(n))
		widths = append(widths, width)
	}
	if act := cmp.Or(c.Word("act_fn"), "silu"); act != "silu" && act != "swish" {
		c.Unknown("act_fn", act)
	}
	c.Number(&layers, "layers_per_block", depth)
	c.Number(&groups, "norm_num_groups", 32)
	if layers > family.MaxBlocks {
		c.Fail("layers_per_block", "%d blocks, more than %d", layers, family.MaxBlocks)
	}
	return widths, layers, groups
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
