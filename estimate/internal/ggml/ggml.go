// Package ggml computes the size of the buffer in which ggml, llama.cpp's library, allocates the tensors of a graph.
//
// The size follows from the order in which tensors are made and last read, so this package builds the graph of a
// Model as llama.cpp does, tensor by tensor, and places the tensors as ggml's allocator does. It has sizes only: nothing
// is computed. The sources are those of llama.cpp's release v0.5.0: src/llama-graph.cpp and src/models for the graphs, and
// ggml/src/ggml.c (ggml_build_forward_expand) and ggml/src/ggml-alloc.c for the order and the places of the tensors.
package ggml

import "slices"

// tensor is a node of a graph, or an input of it.
type tensor struct {
	size    int64
	sources []*tensor
	viewOf  *tensor // the tensor whose memory a view shares; nil if it has memory of its own
	inPlace bool    // it may take the memory of a source
	outside bool    // its memory is not in the buffer: weights, keys and values
	output  bool    // it is not freed

	visited, allocated bool
	children, views    int
	at                 int64
}

// graph is a list of tensors in the order in which they are computed.
type graph struct {
	nodes, inputs []*tensor
}

// input returns a tensor that is filled from outside. It takes a place once the graph has a use of it.
func (g *graph) input(size int64) *tensor { return &tensor{size: size} }

// op returns a tensor with memory of its own.
func op(size int64, sources ...*tensor) *tensor { return &tensor{size: size, sources: sources} }

// over returns a tensor that takes the memory of one of its sources if it is the last that reads it: an elementwise
// operation, a norm, a softmax or a rotation.
func over(size int64, sources ...*tensor) *tensor {
	return &tensor{size: size, sources: sources, inPlace: true}
}

// view returns the memory of a tensor in another shape.
func view(t *tensor) *tensor {
	of := t
	if t.viewOf != nil {
		of = t.viewOf
	}
	return &tensor{size: t.size, sources: []*tensor{t}, viewOf: of, outside: t.outside}
}

// part returns a view of some columns of a tensor.
func part(t *tensor, size int64) *tensor {
	v := view(t)
	v.size = size
	return v
}

// store returns a tensor that writes its sources to memory outside the buffer.
func store(sources ...*tensor) *tensor {
	cache := &tensor{outside: true}
	return &tensor{sources: sources, viewOf: cache, outside: true}
}

// expand appends a tensor, after those that it needs.
func (g *graph) expand(tensors ...*tensor) {
	for _, t := range tensors {
		if t.visited {
			continue
		}
		t.visited = true
		g.expand(t.sources...)
		switch {
		case len(t.sources) > 0:
			g.nodes = append(g.nodes, t)
		case !t.outside:
			g.inputs = append(g.inputs, t)
		}
	}
}

// size returns the size of the buffer for the graph (ggml_gallocr_alloc_graph_impl). It may be called once.
func (g *graph) size(alignment int64) int64 {
	a := allocator{alignment: alignment, free: []span{{0, 1 << 62}}}
	for _, t := range g.inputs {
		a.place(t)
	}
	for _, t := range g.nodes {
		if t.viewOf != nil {
			t.viewOf.views++
		}
		for _, s := range t.sources {
			s.children++
		}
	}
	for _, t := range g.nodes {
		a.place(t)
		for _, s := range t.sources {
			a.read(s)
		}
	}
	return a.most
}

// allocator places tensors in a buffer.
type allocator struct {
	alignment, most int64
	free            []span // in their order; the last one has no end
}

type span struct{ at, size int64 }

// place gives a tensor its place: that of a source, or a free one.
func (a *allocator) place(t *tensor) {
	if t.allocated || t.viewOf != nil || t.outside {
		return
	}
	t.allocated = true
	if t.inPlace {
		for _, s := range t.sources {
			if s.takenBy(t) {
				return
			}
		}
	}
	size := a.aligned(t.size)
	best := len(a.free) - 1
	for i, f := range a.free[:best] {
		if f.size >= size && f.size <= a.free[best].size {
			best = i
		}
	}
	f := &a.free[best]
	t.at = f.at
	f.at, f.size = f.at+size, f.size-size
	if f.size == 0 {
		a.free = slices.Delete(a.free, best, best+1)
	}
	a.most = max(a.most, t.at+size)
}

// takenBy gives the place of a source to a tensor that is its last reader, and reports whether it did. That of a view is
// never taken.
func (t *tensor) takenBy(by *tensor) bool {
	if !t.allocated || t.output || t.size != by.size || t.children != 1 || t.views != 0 {
		return false
	}
	by.at, t.allocated = t.at, false
	return true
}

// read counts a use of a tensor, and frees its memory after the last one.
func (a *allocator) read(t *tensor) {
	if t.children--; t.children > 0 || t.views > 0 {
		return
	}
	if t.viewOf == nil {
		a.release(t)
		return
	}
	if of := t.viewOf; of != nil {
		if of.views--; of.views == 0 && of.children == 0 {
			a.release(of)
		}
	}
}

// release frees the memory of a tensor.
func (a *allocator) release(t *tensor) {
	if !t.allocated || t.output || t.outside {
		return
	}
	t.allocated = false
	at, size := t.at, a.aligned(t.size)
	i, _ := slices.BinarySearchFunc(a.free, at, func(f span, at int64) int {
		if f.at < at {
			return -1
		}
		return 1
	})
	a.free = slices.Insert(a.free, i, span{at, size})
	if i+1 < len(a.free) && a.free[i].at+a.free[i].size == a.free[i+1].at {
		a.free[i].size += a.free[i+1].size
		a.free = slices.Delete(a.free, i+1, i+2)
	}
	if i > 0 && a.free[i-1].at+a.free[i-1].size == a.free[i].at {
		a.free[i-1].size += a.free[i].size
		a.free = slices.Delete(a.free, i, i+1)
	}
}

func (a *allocator) aligned(n int64) int64 { return (n + a.alignment - 1) / a.alignment * a.alignment }
