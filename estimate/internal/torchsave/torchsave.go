// Package torchsave reads which tensors are in the files that torch.save and torch.distributed.checkpoint
// write. It calls nothing that a file names, and it reads no weights.
//
// A file may be hostile: time and memory follow what it really holds.
package torchsave

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/plain"
)

// File is what a file holds.
type File struct {
	// Tensors are the model's, one for each storage: of those that share one, the first that the file
	// names. A storage counts whole, also if its tensors are views of a part: loading it takes its memory.
	Tensors []Tensor
	// Names are the names of all tensors of the model, without those of tensors of no data.
	Names []string
	// Part is the key of the file's outermost dict under which the model is; "" if the whole file is
	// the model. Dots separate keys of dicts within each other.
	Part string
	// Rest is what is not the model's, such as an optimizer's state.
	Rest Rest
	// NoData is the number of tensors of the meta device, which have a shape and no data.
	NoData int
}

// Rest is how much of a file is not the model's.
type Rest struct {
	Tensors int // each storage once
	Bytes   int64
}

// Tensor is a storage, under the name of the first tensor in it.
type Tensor struct {
	Name     string
	Type     string // torch's name of it, such as "bfloat16"
	Shape    []int  // the tensor's; that of a view is the number of the storage's elements
	Elements int64  // of the storage
	Bytes    int64  // of the storage
	Buffer   bool   // a module that was saved whole says that it is one
}

// maxTensors limits the tensors of a file, as for safetensors.
const maxTensors = 1 << 18

// maxDepth bounds how deeply dicts lie within each other, and maxDims the dimensions of a tensor.
const (
	maxDepth = 256
	maxDims  = 64
)

// found is a tensor where the file has it.
type found struct {
	path    []string
	storage int // index in held
	buffer  bool
}

// held is a storage.
type held struct {
	tensor Tensor
	whole  bool // the tensor's shape is that of the whole storage
}

// table is all tensors of a file.
type table struct {
	data   *plain.Data
	found  []found
	held   []held
	noData int
}

func (t *table) add(f found) error {
	if len(t.found) >= maxTensors {
		return fmt.Errorf("it has more than %d tensors, and no model has that many in a file", maxTensors)
	}
	t.found = append(t.found, f)
	const each = 128
	key := 0 // a key that is too long was copied when it was cut
	if n := len(f.path); n > 0 {
		key = len(f.path[n-1])
	}
	return t.data.Use(int64(each + 16*len(f.path) + key))
}

// modelKeys are the keys under which programs save a model beside other things, the most certain first:
// Lightning's state_dict, the one of PyTorch's tutorials, those of Megatron, DeepSpeed and others.
var modelKeys = []string{"state_dict", "model_state_dict", "model", "module", "model_state", "net", "network"}

// file separates the model from the rest.
func (t *table) file() (*File, error) {
	part, ok := t.modelPart()
	f := &File{Part: strings.Join(part, "."), NoData: t.noData}
	of := make([]bool, len(t.held)) // the model's storages
	for _, at := range t.found {
		if ok(at.path) {
			name := bounded.Name(strings.Join(at.path[min(len(part), len(at.path)-1):], "."))
			if err := t.data.Use(int64(len(name))); err != nil {
				return nil, err
			}
			f.Names = append(f.Names, name)
			if of[at.storage] {
				continue
			}
			of[at.storage] = true
			h := t.held[at.storage]
			h.tensor.Name, h.tensor.Buffer = name, at.buffer
			if !h.whole {
				if int64(int(h.tensor.Elements)) != h.tensor.Elements {
					return nil, fmt.Errorf("tensor %q: the %d elements of its storage do not fit an int", name, h.tensor.Elements)
				}
				h.tensor.Shape = []int{int(h.tensor.Elements)}
			}
			f.Tensors = append(f.Tensors, h.tensor)
		}
	}
	for i, h := range t.held {
		if !of[i] {
			f.Rest.Tensors++
			f.Rest.Bytes += h.tensor.Bytes
		}
	}
	return f, nil
}

// modelPart returns the keys under which the model is, and whether a path is the model's.
func (t *table) modelPart() (part []string, ok func(path []string) bool) {
	for depth := range maxDepth {
		under := map[string]bool{}
		for _, f := range t.found {
			if len(f.path) > depth+1 {
				under[f.path[depth]] = true
			}
		}
		for _, key := range modelKeys {
			if under[key] {
				part = append(part, key)
				return part, func(path []string) bool {
					return len(path) > len(part) && slices.Equal(path[:len(part)], part)
				}
			}
		}
		if depth > 0 || len(under) != 1 || len(t.found) == 0 { // a dict around all, such as the state of an application
			break
		}
		for key := range under {
			part = append(part, key)
		}
	}
	return nil, func(path []string) bool {
		return !isState(path[0]) || len(path) == 1 && !strings.Contains(path[0], "rng")
	}
}

// isState reports whether a key is one under which programs save what trains a model.
func isState(key string) bool {
	key = strings.ToLower(key)
	return strings.Contains(key, "optim") || strings.Contains(key, "rng_state") || strings.Contains(key, "scheduler") || key == "rng"
}

// numbers returns a shape or strides.
func (t *table) numbers(v plain.Value) ([]int, error) {
	if o, ok := t.data.Object(v); ok && t.data.Global(o.Callee) == "torch.Size" {
		if args := t.data.List(o.Args); len(args) == 1 {
			v = args[0]
		}
	}
	list := t.data.List(v)
	if v.Kind() != plain.List || len(list) > maxDims {
		return nil, fmt.Errorf("%v of %d where at most %d sizes belong", v.Kind(), len(list), maxDims)
	}
	numbers := make([]int, len(list))
	for i, e := range list {
		n, ok := e.Int()
		if !ok || n < 0 || int64(int(n)) != n {
			return nil, fmt.Errorf("a size is no whole number that fits an int")
		}
		numbers[i] = int(n)
	}
	return numbers, t.data.Use(int64(8 * len(numbers)))
}

// product is the number of elements; it is an error if it overflows.
func product(shape []int) (int64, error) {
	n := int64(1)
	if slices.Contains(shape, 0) {
		return 0, nil
	}
	for _, side := range shape {
		if n > (1<<62)/int64(side) {
			return 0, fmt.Errorf("the number of elements of %v overflows", shape)
		}
		n *= int64(side)
	}
	return n, nil
}

// sizes are the bytes of an element of torch's types. A type that is not among them has one byte.
var sizes = map[string]int64{
	"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "uint64": 8, "uint32": 4, "uint16": 2,
	"complex32": 4, "complex64": 8, "complex128": 16, "qint32": 4, "bits16": 2,
}

func sizeOf(dtype string) int64 {
	if n, ok := sizes[dtype]; ok {
		return n
	}
	return 1
}

// legacyStorages are the classes of storages of one type.
var legacyStorages = map[string]string{
	"DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
	"LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
	"ComplexDoubleStorage": "complex128", "ComplexFloatStorage": "complex64",
	"QInt8Storage": "qint8", "QUInt8Storage": "quint8", "QInt32Storage": "qint32", "QUInt4x2Storage": "quint4x2", "QUInt2x4Storage": "quint2x4",
}

func index(i int) string { return strconv.Itoa(i) }
