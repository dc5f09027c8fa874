package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/families"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/strictjson"
)

// GGUF (ggml-org/ggml, docs/gguf.md): magic, version, number of tensors, number of
// metadata keys, the metadata, the tensors' descriptions, padding, the data.
//
// The header is read here and not by github.com/gpustack/gguf-parser-go, good as
// it is for files that can be trusted: its v0.26.3 cannot be guarded against others
// without reading the header first. Arrays nested in arrays recurse until the stack
// ends, which kills the process; split.tensors.count is allocated as it stands; an
// array allocates 16 bytes for each byte that the file claims to have left, which
// in a sparse file is no bound; an alignment of 0 divides by it. Offsets are not
// checked at all. The tests hold this reader and its types against that one.
//
// The rules checked are those of llama.cpp's own reader (ggml/src/gguf.cpp).

const (
	maxGGUFDims  = 4       // GGML_MAX_DIMS
	maxGGUFCount = 1 << 17 // keys, and tensors; the largest models have some thousand
)

// ggufFile is the header of one GGUF file.
type ggufFile struct {
	file     string
	metadata map[string]ggufValue
	tensors  []tensorInfo
}

// readGGUF reads the header of a GGUF file of size bytes. Memory follows what the
// file really holds and not what it claims.
func readGGUF(r io.ReaderAt, size int64, file string) (*ggufFile, error) {
	g := &ggufFile{file: file, metadata: map[string]ggufValue{}}
	in := newGGUFReader(r, size)
	tensors, keys, err := g.counts(in)
	if err != nil {
		return nil, err
	}
	for i := range keys {
		if err := g.key(in, i); err != nil {
			return nil, err
		}
	}
	alignment, err := g.alignment()
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for i := range tensors {
		t, err := g.tensor(in, i)
		if err != nil {
			return nil, err
		}
		if seen[t.Name] {
			return nil, atTensor(file, t.Name, "the name occurs twice")
		}
		seen[t.Name] = true
		g.tensors = append(g.tensors, t)
	}
	return g, g.checkLayout(in.at, size, alignment)
}

// counts reads all up to the metadata.
func (g *ggufFile) counts(in *ggufReader) (tensors, keys uint64, err error) {
	magic, err := in.take(4)
	if err != nil || string(magic) != "GGUF" {
		return 0, 0, inFile(g.file, "it does not begin with GGUF: no GGUF file")
	}
	var version uint32
	for _, step := range []func() error{
		func() (err error) { version, err = in.uint32(); return err },
		func() (err error) { tensors, err = in.uint64(); return err },
		func() (err error) { keys, err = in.uint64(); return err },
	} {
		if err := step(); err != nil {
			return 0, 0, &fileError{file: g.file, where: g.byteAt(in), err: err}
		}
	}
	switch {
	case version&0xffff == 0:
		return 0, 0, inFile(g.file, "it is a big-endian GGUF file, which is not supported")
	case version != 2 && version != 3:
		return 0, 0, inFile(g.file, "GGUF version %d; versions 2 and 3 are supported", version)
	case max(keys, tensors) > maxGGUFCount:
		return 0, 0, inFile(g.file, "the header says that it has %d metadata keys and %d tensors, more than the %d of each that are allowed", keys, tensors, maxGGUFCount)
	case keys > uint64(in.left/13): // length of the key, type, a value of one byte
		return 0, 0, inFile(g.file, "the header says that it has %d metadata keys, more than its bytes can hold", keys)
	case tensors > uint64(in.left/24): // length of the name, dimensions, type, offset
		return 0, 0, inFile(g.file, "the header says that it has %d tensors, more than its bytes can hold", tensors)
	}
	return tensors, keys, nil
}

// key reads the i-th key of the metadata and its value.
func (g *ggufFile) key(in *ggufReader, i uint64) error {
	name, err := in.name()
	if err != nil {
		return &fileError{file: g.file, where: fmt.Sprintf("metadata key %d, %s", i, g.byteAt(in)), err: err}
	}
	where := fmt.Sprintf("metadata key %q", strictjson.Shorten(name))
	if _, ok := g.metadata[name]; ok || name == "" {
		return &fileError{file: g.file, where: where, reason: "it is empty or occurs twice"}
	}
	value, err := in.value()
	if err != nil {
		return &fileError{file: g.file, where: where, err: err}
	}
	g.metadata[name] = value
	return nil
}

// tensor reads the i-th tensor's description. Its offset still counts from the beginning of the
// data.
func (g *ggufFile) tensor(in *ggufReader, i uint64) (tensorInfo, error) {
	t := tensorInfo{File: g.file}
	var err error
	if t.Name, err = in.name(); err != nil {
		return t, &fileError{file: g.file, where: fmt.Sprintf("tensor %d, %s", i, g.byteAt(in)), err: err}
	}
	if err = g.describe(in, &t); err == nil {
		err = t.measure()
	}
	if err != nil {
		return t, &fileError{file: g.file, where: fmt.Sprintf("tensor %q", strictjson.Shorten(t.Name)), err: err}
	}
	return t, nil
}

// describe reads what follows a tensor's name.
func (g *ggufFile) describe(in *ggufReader, t *tensorInfo) error {
	dims, err := in.uint32()
	if err != nil {
		return err
	}
	if dims > maxGGUFDims {
		return fmt.Errorf("%d dimensions; GGUF allows %d", dims, maxGGUFDims)
	}
	t.Shape = make(alloc.Shape, dims)
	for i := range t.Shape {
		length, err := in.uint64()
		if err != nil {
			return err
		}
		if length > math.MaxInt {
			return fmt.Errorf("dimension %d has a length of %d", i, length)
		}
		t.Shape[i] = int(length)
	}
	kind, err := in.uint32()
	if err != nil {
		return err
	}
	var ok bool
	if t.encoding, ok = ggufEncodings[kind]; !ok {
		return fmt.Errorf("unknown tensor type %d", kind)
	}
	row := 1
	if dims > 0 {
		row = t.Shape[0]
	}
	if row%t.encoding.blockElements != 0 {
		return fmt.Errorf("rows of %d elements do not fill whole blocks of %d, as %s has them", row, t.encoding.blockElements, t.encoding)
	}
	slices.Reverse(t.Shape) // GGUF has the innermost dimension first
	offset, err := in.uint64()
	if offset > math.MaxInt64 {
		return fmt.Errorf("an offset of %d", offset)
	}
	t.Offset = int64(offset)
	return err
}

// alignment returns the number of bytes that each tensor's data are aligned to.
func (g *ggufFile) alignment() (int64, error) {
	v, ok := g.metadata["general.alignment"]
	if !ok {
		return 32, nil
	}
	if v.array || v.kind != ggufUint32 || v.words[0] == 0 || v.words[0]&(v.words[0]-1) != 0 {
		return 0, &fileError{file: g.file, where: `metadata key "general.alignment"`, reason: "it is not a power of two in a uint32"}
	}
	return int64(v.words[0]), nil
}

// checkLayout checks that the tensors' data follow each other, each aligned, up to the end of the
// file. It turns their offsets into offsets from the file's beginning. As in llama.cpp, bytes after
// the last tensor are no error.
func (g *ggufFile) checkLayout(header, size, alignment int64) error {
	start, ok := alignUp(header, alignment)
	want := int64(0)
	for i := range g.tensors {
		t := &g.tensors[i]
		if t.Offset != want {
			return atTensor(g.file, t.Name, "its data begin at offset %d, but the data before it end at %d: they overlap or leave a hole", t.Offset, want)
		}
		if !ok || start > size || t.Offset > size-start || int64(t.Bytes) > size-start-t.Offset {
			return atTensor(g.file, t.Name, "its data of %d bytes at offset %d run past the end of the file: truncated, or the header lies", int64(t.Bytes), t.Offset)
		}
		want, ok = alignUp(t.Offset+int64(t.Bytes), alignment)
		t.Offset += start
	}
	return nil
}

// alignUp rounds up to a multiple of alignment, a power of two.
func alignUp(n, alignment int64) (int64, bool) {
	if n > math.MaxInt64-alignment {
		return 0, false
	}
	return (n + alignment - 1) &^ (alignment - 1), true
}

func (g *ggufFile) byteAt(in *ggufReader) string { return fmt.Sprintf("byte %d", in.at) }

// text returns a metadata string; "" if it is not there.
func (g *ggufFile) text(key string) string { return strings.TrimSpace(g.metadata[key].text) }

// whole returns the metadata number at key, which must not be negative. If the key is missing, it
// returns without, or an error if without is negative.
func (g *ggufFile) whole(key string, without int) (int, error) {
	v, ok := g.metadata[key]
	if !ok {
		if without < 0 {
			return 0, &fileError{file: g.file, reason: fmt.Sprintf("metadata key %q is missing", key)}
		}
		return without, nil
	}
	n, err := v.whole()
	if err != nil {
		return 0, &fileError{file: g.file, where: fmt.Sprintf("metadata key %q", key), err: err}
	}
	return n, nil
}

// architecture looks the model up among the families that are known.
func (g *ggufFile) architecture() (architecture, error) {
	name := g.text("general.architecture")
	h := ggufMetadata{g, make(map[string]alloc.Shape, len(g.tensors))}
	for _, t := range g.tensors {
		h.shapes[t.Name] = t.Shape
	}
	m, err := families.Table().ReadGGUF(name, h)
	wrong := (*family.Error)(nil)
	switch {
	case err == nil:
		return architecture{Model: m}, nil
	case errors.As(err, &wrong):
		return architecture{}, settingsError(g.file, wrong)
	case !errors.Is(err, family.ErrUnknown):
		return architecture{}, err
	}
	a := architecture{Model: family.Model{Type: name}}
	if alone, ok := family.GGUFCacheAlone(name, h); ok {
		a = architecture{Model: alone, cache: true}
	}
	return a, &fileError{file: g.file, where: `metadata key "general.architecture"`,
		reason: fmt.Sprintf("%q is not a known architecture", strictjson.Shorten(name)), err: ErrUnknownArchitecture}
}

// ggufMetadata gives families access to the metadata of a GGUF file.
type ggufMetadata struct {
	*ggufFile
	shapes map[string]alloc.Shape
}

// Whole returns a number of the metadata.
func (h ggufMetadata) Whole(key string, without int) (int, error) { return h.whole(key, without) }

// Numbers returns an array of numbers, or a single number as an array; booleans are 0 and 1.
func (h ggufMetadata) Numbers(key string) []int {
	v := h.metadata[key]
	if v.kind == ggufFloat32 || v.kind == ggufFloat64 {
		return nil
	}
	all := make([]int, len(v.words))
	for i, word := range v.words {
		all[i] = int(min(word, math.MaxInt32))
	}
	return all
}

// Flag returns a boolean of the metadata, or without if there is none.
func (h ggufMetadata) Flag(key string, without bool) bool {
	if v, ok := h.metadata[key]; ok && v.kind == ggufBool && len(v.words) == 1 {
		return v.words[0] != 0
	}
	return without
}

// Shape returns the shape of a tensor.
func (h ggufMetadata) Shape(tensor string) (alloc.Shape, bool) {
	s, ok := h.shapes[tensor]
	return s, ok
}

// Tokens returns the number of tokens that the tokenizer has.
func (h ggufMetadata) Tokens() int {
	return int(min(h.metadata["tokenizer.ggml.tokens"].length, math.MaxInt32))
}

// openGGUF reads a GGUF file. If it is one part of a split model, it reads all parts, which must
// lie beside it. The metadata come from the first part.
func openGGUF(path string) (*ggufFile, error) {
	g, err := readHeader(path, readGGUF)
	if err != nil {
		return nil, err
	}
	count, err := g.whole("split.count", 1)
	if err != nil || count <= 1 {
		return g, err
	}
	prefix, err := splitPrefix(g.file, count)
	if err != nil {
		return nil, err
	}
	var model *ggufFile
	names := map[string]string{}
	for i := range count {
		file := splitName(prefix, i, count)
		part, err := readHeader(filepath.Join(filepath.Dir(path), file), readGGUF)
		if err != nil {
			return nil, fmt.Errorf("open part %d of %d: %w", i+1, count, err)
		}
		if n, err := part.whole("split.no", -1); err != nil || n != i {
			return nil, inFile(file, "its split.no is not %d, as its name says", i)
		}
		for _, t := range part.tensors {
			if other, ok := names[t.Name]; ok {
				return nil, atTensor(file, t.Name, "%s holds it too", other)
			}
			names[t.Name] = file
		}
		if model == nil {
			model = part
			continue
		}
		model.tensors = append(model.tensors, part.tensors...)
	}
	if n, err := model.whole("split.tensors.count", len(model.tensors)); err != nil || n != len(model.tensors) {
		return nil, inFile(model.file, "the parts hold %d tensors, but split.tensors.count is %d", len(model.tensors), n)
	}
	return model, nil
}

// splitName returns the name that llama.cpp's gguf-split gives to part i, counted from 0.
func splitName(prefix string, i, count int) string {
	return fmt.Sprintf("%s-%05d-of-%05d.gguf", prefix, i+1, count)
}

// splitPrefix returns what the names of all parts begin with.
func splitPrefix(file string, count int) (string, error) {
	suffix := fmt.Sprintf("-of-%05d.gguf", count)
	rest, ok := strings.CutSuffix(file, suffix)
	if cut := len(rest) - len("-00001"); ok && cut >= 0 && rest[cut] == '-' {
		return rest[:cut], nil
	}
	return "", inFile(file, "it is one of %d parts, but its name does not end in %q: the others cannot be found", count, "-NNNNN"+suffix)
}

// isSplit reports whether the files are the parts of one model and no others.
func isSplit(files []string) bool {
	for i, file := range files {
		prefix, err := splitPrefix(file, len(files))
		if err != nil || file != splitName(prefix, i, len(files)) {
			return false
		}
	}
	return true
}
