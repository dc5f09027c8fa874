package ggml

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// llama is a model of four blocks, 1024 wide.
func llama(vocab int) Model {
	block := Block{Mixer: Attention{Heads: 16, KVHeads: 4, HeadSize: 64, ValueSize: 64, Rotates: true}, MLP: MLP{Width: 2816, Gated: true}}
	return Model{Vocab: vocab, Hidden: 1024, Values: 256, Blocks: slices.Repeat([]Block{block}, 4)}
}

// What llama.cpp v0.5.0 reserves on the CPU; contrib/llama holds many more models to it.
func TestBufferSize(t *testing.T) {
	one := Setting{Cells: 4096, WindowCells: 4096, Streams: 1, Sequences: 1, Batch: 512, Outputs: 512, Host: true}
	flash, rotated := one, one
	flash.Flash = true
	rotated.Flash, rotated.RotatedKeys, rotated.RotatedValues, rotated.Cells, rotated.Batch, rotated.Outputs = true, true, true, 8192, 128, 128
	apart := one
	apart.Cells, apart.Streams, apart.Sequences = 512, 4, 4
	for name, test := range map[string]struct {
		s    Setting
		want int64
	}{
		"scores":                       {one, 154_150_912},
		"flash attention":              {flash, 29_898_752},
		"quantized keys and values":    {rotated, 8_031_744},
		"each sequence with its cells": {apart, 29_370_368},
	} {
		n, ok := BufferSize(llama(4096), test.s)
		require.True(t, ok, name)
		assert.Equal(t, test.want, n, name)
	}
	wide := flash
	wide.WideMask, wide.Host = true, false
	narrow := wide
	narrow.WideMask = false
	more, _ := BufferSize(llama(4096), wide)
	less, _ := BufferSize(llama(4096), narrow)
	assert.InDelta(t, 4*4096*512, more-less, 4<<20, "the mask in float32, with whose place something else can do")
	logits, _ := BufferSize(llama(128_256), narrow)
	assert.EqualValues(t, 4*512*(128_256+1024), logits)
	_, ok := BufferSize(llama(4096), Setting{Cells: 1 << 30, Streams: 1, Batch: 1 << 30, Outputs: 1, Sequences: 1})
	assert.False(t, ok, "more than any memory")
}

// A model of many blocks needs what one of three of each kind needs.
func TestRepresentativeBlocks(t *testing.T) {
	m, s := llama(4096), Setting{Cells: 4096, Streams: 1, Sequences: 1, Batch: 512, Outputs: 512}
	few, _ := BufferSize(m, s)
	m.Blocks = slices.Repeat(m.Blocks, 200)
	many, _ := BufferSize(m, s)
	assert.Equal(t, few, many)
	assert.Len(t, representative(m.Blocks), 3)
}

// A tensor takes the place of a source that nothing else reads; freed places are joined and the smallest that is enough is taken.
func TestPlaces(t *testing.T) {
	var g graph
	x := g.input(256)
	y := over(256, x)
	wide := op(1024, y)
	narrow := op(128, wide)
	g.expand(narrow)
	assert.EqualValues(t, 256+1024, g.size(128), "the last one has the place of the first two")

	var h graph
	a := h.input(256)
	b, c := op(512, a), op(256, a)
	h.expand(op(256, b, c), op(512, op(768, c)))
	assert.EqualValues(t, 256+512+256+768, h.size(128), "that of b is too small for the largest one, and with that of c large enough for the last one")
}
