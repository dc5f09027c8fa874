package torchsave

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/archive"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/plain"
)

// The file of torch.save is a ZIP archive, NAME/data.pkl and NAME/data/KEY, all stored as they are
// (torch/serialization.py, _save of torch 2.15). data.pkl has the object; a tensor in it is a call of a
// function of torch._utils with a storage, and a storage is the persistent ID
// ("storage", class, KEY, device, number of elements).

// ReadArchive reads a file of torch.save.
func ReadArchive(r io.ReaderAt, size int64) (*File, error) {
	z, err := archive.Open(r, size, maxEntries)
	if err != nil {
		return nil, err
	}
	w := walker{sizes: make(map[string]int64), storages: make(map[string]int), seen: make(map[[2]int64]bool)}
	var pickle *zip.File
	for _, f := range z.File {
		if folder, name, _ := strings.Cut(f.Name, "/"); name == "data.pkl" && pickle == nil {
			pickle, w.folder = f, folder
		}
	}
	if pickle == nil {
		return nil, errors.New("it is a ZIP file without a data.pkl: torch.save did not write it")
	}
	for _, f := range z.File {
		if key, ok := strings.CutPrefix(f.Name, w.folder+"/data/"); ok {
			if _, twice := w.sizes[key]; twice {
				return nil, fmt.Errorf("it holds storage %.40q twice", key)
			}
			if f.Method != zip.Store || f.UncompressedSize64 > uint64(size) {
				return nil, fmt.Errorf("storage %.40q is packed, or larger than the file: torch.save did not write it", key)
			}
			w.sizes[key] = int64(f.UncompressedSize64)
		}
	}
	root, err := w.read(pickle)
	if err != nil {
		return nil, fmt.Errorf("data.pkl: %w", err)
	}
	if err := w.walk(root, nil, false); err != nil {
		return nil, err
	}
	return w.file()
}

// maxPickle limits data.pkl and .metadata: a data.pkl of a hundred thousand tensors has 20 MB.
const maxPickle = 1 << 30

func (w *walker) read(f *zip.File) (plain.Value, error) {
	if f.Method != zip.Store {
		return plain.Value{}, errors.New("it is packed: torch.save did not write it")
	}
	in, err := f.Open()
	if err != nil {
		return plain.Value{}, err
	}
	defer in.Close()
	text, err := bounded.NewReader(in, maxPickle)
	if err != nil {
		return plain.Value{}, err
	}
	var root plain.Value
	w.data, root, err = plain.ReadObjects(text)
	return root, err
}

// maxEntries bounds the files in an archive: those of its storages and some more.
const maxEntries = maxTensors + 1024

// walker finds the tensors in an object.
type walker struct {
	table
	folder   string
	sizes    map[string]int64  // bytes of the storages, by key
	storages map[string]int    // index in held, by key
	seen     map[[2]int64]bool // lists, dicts and objects that were walked through
	depth    int               // of calls of walk
}

// walk adds the tensors in a value at a path.
func (w *walker) walk(v plain.Value, path []string, buffer bool) error {
	if w.depth++; w.depth > maxDepth {
		return fmt.Errorf("its dicts and objects lie more than %d deep within each other", maxDepth)
	}
	defer func() { w.depth-- }()
	id, ok := v.ID()
	if !ok {
		return nil
	}
	o, called := w.data.Object(v)
	if called {
		if done, err := w.tensor(o, path, buffer); done || err != nil {
			return err
		}
	}
	if first, err := w.enter(id); !first || err != nil {
		return err
	}
	if called && w.isWrapper(o) {
		return w.unwrap(w.data.List(o.Args), path, buffer)
	}
	if called {
		return w.walkObject(o, path, buffer)
	}
	for i, e := range w.data.List(v) {
		if _, ok := e.ID(); ok {
			if err := w.walk(e, under(path, index(i)), buffer); err != nil {
				return err
			}
		}
	}
	for key, e := range w.data.Each(v) {
		if _, ok := e.ID(); !ok {
			continue
		}
		if err := w.walk(e, under(path, key), buffer); err != nil {
			return err
		}
	}
	return nil
}

// enter reports whether a list, dict or object is walked through for the first time. It may hold itself, and many
// may hold it.
func (w *walker) enter(id [2]int64) (first bool, err error) {
	if w.seen[id] {
		return false, nil
	}
	w.seen[id] = true
	const each = 64
	return true, w.data.Use(each)
}

// enterDict is enter of a dict; no other value is entered.
func (w *walker) enterDict(v plain.Value) (first bool, err error) {
	id, _ := v.ID()
	if v.Kind() != plain.Dict {
		return false, nil
	}
	return w.enter(id)
}

// under returns the path with one more key.
func under(path []string, key string) []string {
	return append(slices.Clip(path), bounded.Name(key))
}

// walkObject adds the tensors of an object that is no tensor itself, such as a module.
func (w *walker) walkObject(o plain.Object, path []string, buffer bool) error {
	first, err := w.enterDict(o.State)
	if err != nil {
		return err
	}
	if first {
		if err := w.attributes(o.State, path, buffer); err != nil {
			return err
		}
	}
	for i, v := range []plain.Value{o.State, o.Items} {
		if i == 0 && v.Kind() == plain.Dict {
			continue
		}
		if err := w.walk(v, path, buffer); err != nil {
			return err
		}
	}
	return w.walk(o.Args, path, buffer)
}

// attributes adds the tensors of an object's attributes. Those of a module are in dicts of its own.
func (w *walker) attributes(state plain.Value, path []string, buffer bool) error {
	for key, e := range w.data.Each(state) {
		var err error
		switch key {
		case "_parameters", "_modules":
			err = w.members(e, path, false)
		case "_buffers":
			err = w.members(e, path, true)
		default:
			err = w.walk(e, under(path, key), buffer)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) members(dict plain.Value, path []string, buffer bool) error {
	if first, err := w.enterDict(dict); !first || err != nil {
		return err
	}
	for key, e := range w.data.Each(dict) {
		if err := w.walk(e, under(path, key), buffer); err != nil {
			return err
		}
	}
	return nil
}

// isWrapper reports whether an object is a tensor of a subclass, or one with attributes:
// (function, class, the function's arguments, attributes).
func (w *walker) isWrapper(o plain.Object) bool {
	return strings.HasPrefix(w.data.Global(o.Callee), "torch._tensor._rebuild_from_type") && len(w.data.List(o.Args)) == 4
}

// unwrap adds the tensor that a wrapper's function makes, and those of its attributes.
func (w *walker) unwrap(args []plain.Value, path []string, buffer bool) error {
	done, err := w.tensor(plain.Object{Callee: args[0], Args: args[2]}, path, buffer)
	if !done && err == nil {
		err = w.walk(args[2], path, buffer)
	}
	if err != nil {
		return err
	}
	return w.walk(args[3], path, buffer)
}

// tensor adds an object that is a tensor or a storage. done says that nothing else is in it.
func (w *walker) tensor(o plain.Object, path []string, buffer bool) (done bool, err error) {
	args := w.data.List(o.Args)
	name := w.data.Global(o.Callee)
	switch function, _ := strings.CutPrefix(name, "torch._utils."); {
	case o.Callee.IsNone():
		if _, ok := w.storageID(o); !ok {
			return false, nil
		}
		return true, w.addView(o, view{}, path, buffer)
	case (function == "_rebuild_parameter" || function == "_rebuild_parameter_with_state") && len(args) > 0:
		const each = 64 // it is not entered: a tied parameter counts under each of its names
		if err := w.data.Use(each); err != nil {
			return true, err
		}
		return true, w.walk(args[0], path, false)
	case function == "_rebuild_meta_tensor_no_storage":
		w.noData++
		return true, nil
	case (function == "_rebuild_tensor" || function == "_rebuild_tensor_v2" || function == "_rebuild_tensor_v3" || function == "_rebuild_qtensor") && len(args) >= 4:
		storage, ok := w.data.Object(args[0])
		if !ok {
			return false, nil
		}
		if _, ok := w.storageID(storage); !ok {
			return false, nil
		}
		v := view{args: args[1:4]}
		if function == "_rebuild_tensor_v3" && len(args) >= 7 {
			v.dtype = strings.TrimPrefix(w.data.Global(args[6]), "torch.")
		}
		if err := w.addView(storage, v, path, buffer); err != nil {
			return true, fmt.Errorf("tensor %q: %w", bounded.Name(strings.Join(path, ".")), err)
		}
		if function == "_rebuild_qtensor" && len(args) >= 5 { // scales and zero points of channels
			return true, w.walk(args[4], under(path, "quantizer"), true)
		}
		return true, nil
	}
	return false, nil
}

// view is which elements of a storage a tensor has: none said means all.
type view struct {
	args  []plain.Value // offset, shape, strides
	dtype string        // of a storage that has no type
}

// storageID returns the persistent ID of a storage.
func (w *walker) storageID(o plain.Object) ([]plain.Value, bool) {
	id := w.data.List(o.Args)
	return id, o.Callee.IsNone() && len(id) == 5 && w.data.Str(id[0]) == "storage"
}

// addView adds a tensor of a storage.
func (w *walker) addView(storage plain.Object, v view, path []string, buffer bool) error {
	id, _ := w.storageID(storage)
	key := w.data.Str(id[2])
	if w.data.Str(id[3]) == "meta" {
		w.noData++
		return nil
	}
	at, known := w.storages[key]
	if !known {
		h, err := w.storage(id, v.dtype)
		if err != nil {
			return err
		}
		at = len(w.held)
		w.held = append(w.held, h)
		w.storages[key] = at
		const each = 256
		if err := w.data.Use(each); err != nil {
			return err
		}
	}
	if len(path) == 0 {
		path = []string{"tensor"}
	}
	if err := w.add(found{path: path, storage: at, buffer: buffer}); err != nil {
		return err
	}
	if v.args == nil {
		return nil
	}
	h := &w.held[at]
	shape, err := w.checkView(h.tensor, v)
	if err == nil && !known {
		n, overflow := product(shape)
		h.tensor.Shape, h.whole = shape, overflow == nil && n == h.tensor.Elements
	}
	return err
}

// storage reads the persistent ID of a storage.
func (w *walker) storage(id []plain.Value, dtype string) (held, error) {
	class := w.data.Global(id[1])
	class = class[strings.LastIndexByte(class, '.')+1:]
	key := w.data.Str(id[2])
	bytes, ok := w.sizes[key]
	if !ok {
		return held{}, fmt.Errorf("its storage %.40q is not in the file: truncated", key)
	}
	typed, ok := legacyStorages[class]
	if ok {
		dtype = typed
	} else if dtype == "" {
		dtype = strings.TrimSuffix(class, "Storage")
	}
	n, isNumber := id[4].Int()
	each := sizeOf(dtype)
	claimed := n // an untyped storage counts bytes
	if ok {
		if n > 1<<59 {
			return held{}, fmt.Errorf("its storage %.40q says that it has %d elements", key, n)
		}
		claimed = n * each
	}
	if !isNumber || dtype != "quint4x2" && dtype != "quint2x4" && claimed != bytes {
		return held{}, fmt.Errorf("its storage %.40q has %d bytes, and the tensors say %d", key, bytes, claimed)
	}
	return held{tensor: Tensor{Type: dtype, Elements: bytes / each, Bytes: bytes}}, nil
}

// checkView returns the shape of a tensor that lies within its storage.
func (w *walker) checkView(t Tensor, v view) ([]int, error) {
	offset, ok := v.args[0].Int()
	if !ok || offset < 0 {
		return nil, errors.New("its offset is no whole number")
	}
	shape, err := w.numbers(v.args[1])
	if err != nil {
		return nil, err
	}
	strides, err := w.numbers(v.args[2])
	if err != nil {
		return nil, err
	}
	if len(strides) != len(shape) {
		return nil, fmt.Errorf("%d strides for %d dimensions", len(strides), len(shape))
	}
	elements, err := product(shape)
	if err != nil || elements == 0 || strings.HasPrefix(t.Type, "quint") && t.Type != "quint8" {
		return shape, err
	}
	each := sizeOf(t.Type)
	if v.dtype != "" {
		each = sizeOf(v.dtype)
	}
	last := offset
	for i, side := range shape {
		if step := int64(strides[i]); step > 0 && int64(side-1) > (1<<61)/step {
			return nil, fmt.Errorf("shape %v with strides %v overflows", shape, strides)
		} else if last += int64(side-1) * step; last > 1<<61 {
			return nil, fmt.Errorf("shape %v with strides %v overflows", shape, strides)
		}
	}
	if last >= t.Bytes/each {
		return nil, fmt.Errorf("its elements reach to %d, and its storage has %d", last, t.Bytes/each)
	}
	return shape, nil
}
