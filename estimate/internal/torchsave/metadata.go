package torchsave

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/plain"
)

// ReadMetadata reads the .metadata of torch.distributed.checkpoint, which describes the whole of what all
// ranks saved (torch/distributed/checkpoint/metadata.py, Metadata of torch 2.15).
func ReadMetadata(r io.ReaderAt, size int64) (*File, error) {
	text, err := bounded.NewReader(io.NewSectionReader(r, 0, size), maxPickle)
	if err != nil {
		return nil, err
	}
	data, root, err := plain.ReadObjects(text)
	if err != nil {
		return nil, err
	}
	t := table{data: data}
	all, ok := t.fields(root, "Metadata")
	if !ok {
		return nil, errors.New("it is no pickle of torch.distributed.checkpoint's Metadata")
	}
	tensors, ok := data.Get(all, data.Key("state_dict_metadata"))
	if !ok || tensors.Kind() != plain.Dict {
		return nil, errors.New("its state_dict_metadata is missing")
	}
	paths, _ := data.Get(all, data.Key("planner_data"))
	for name, v := range data.Each(tensors) {
		state, ok := t.fields(v, "TensorStorageMetadata")
		if !ok {
			continue // bytes of what is no tensor
		}
		h, err := t.whole(state)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", bounded.Name(name), err)
		}
		path := t.path(paths, name)
		t.held = append(t.held, h)
		if err := t.add(found{path: path, storage: len(t.held) - 1}); err != nil {
			return nil, err
		}
	}
	return t.file()
}

// fields returns the fields of an object of a class of torch.distributed.checkpoint.
func (t *table) fields(v plain.Value, class string) (plain.Value, bool) {
	o, ok := t.data.Object(v)
	if !ok || o.State.Kind() != plain.Dict {
		return plain.Value{}, false
	}
	return o.State, t.data.Global(o.Callee) == "torch.distributed.checkpoint.metadata."+class
}

// path returns where in the dict that was saved a tensor is: the names of dicts within each other are
// joined by dots, and planner_data has their keys.
func (t *table) path(paths plain.Value, name string) []string {
	keys, _ := t.data.Get(paths, t.data.Key(name))
	var path []string
	for i, key := range t.data.List(keys) {
		if i == maxDepth {
			break
		}
		text := t.data.Str(key)
		if n, ok := key.Int(); ok {
			text = fmt.Sprint(n)
		}
		path = append(path, bounded.Name(text))
	}
	if len(path) == 0 {
		return []string{bounded.Name(name)}
	}
	return path
}

// whole reads a TensorStorageMetadata, whose chunks must make up the whole tensor.
func (t *table) whole(state plain.Value) (held, error) {
	get := func(of plain.Value, key string) plain.Value {
		v, _ := t.data.Get(of, t.data.Key(key))
		return v
	}
	shape, err := t.numbers(get(state, "size"))
	if err != nil {
		return held{}, err
	}
	elements, err := product(shape)
	if err != nil {
		return held{}, err
	}
	properties, _ := t.data.Object(get(state, "properties"))
	dtype := t.data.Global(get(properties.State, "dtype"))
	if fields := t.data.List(properties.State); len(fields) > 0 {
		dtype = t.data.Global(fields[0])
	}
	dtype, ok := strings.CutPrefix(dtype, "torch.")
	if !ok {
		return held{}, errors.New("its properties have no dtype")
	}
	each := sizeOf(dtype)
	if elements > (1<<62)/each {
		return held{}, fmt.Errorf("the size of %d elements overflows", elements)
	}
	saved := int64(0)
	for _, chunk := range t.data.List(get(state, "chunks")) {
		piece, ok := t.fields(chunk, "ChunkStorageMetadata")
		if !ok {
			return held{}, errors.New("a chunk of it is no ChunkStorageMetadata")
		}
		sides, err := t.numbers(get(piece, "sizes"))
		if err != nil {
			return held{}, err
		}
		if len(sides) != len(shape) {
			return held{}, fmt.Errorf("a chunk of it has %d dimensions, and the tensor %d", len(sides), len(shape))
		}
		n, err := product(sides)
		if err != nil || n > elements-saved {
			return held{}, fmt.Errorf("its chunks hold more than the %d elements of %v", elements, shape)
		}
		saved += n
	}
	if saved != elements {
		return held{}, fmt.Errorf("its chunks hold %d of the %d elements of %v", saved, elements, shape)
	}
	return held{tensor: Tensor{Type: dtype, Shape: shape, Elements: elements, Bytes: elements * each}, whole: true}, nil
}
