package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/strictjson"
)

// The safetensors format: eight bytes with the header's length (little-endian), the
// header in JSON, the data. The rules checked here are those of the reference
// implementation, safetensors 0.8 (safetensors/src/tensor.rs: Metadata::validate): the
// header is at most 100 MB; the data of all tensors, ordered by offset, fill the
// rest of the file without overlap or hole. Beyond it, names must be unique, which
// the format's description asks for.

const maxSafetensorsHeader = 100_000_000

// safetensorsEncodings has all types of safetensors 0.8, including those that package alloc lacks.
var safetensorsEncodings = sync.OnceValue(func() map[string]blockType {
	encodings := map[string]blockType{
		"F6_E2M3":     {name: "F6_E2M3", blockElements: 4, blockBytes: 3},
		"F6_E3M2":     {name: "F6_E3M2", blockElements: 4, blockBytes: 3},
		"F8_E8M0":     {name: "F8_E8M0", blockElements: 1, blockBytes: 1},
		"F8_E4M3FNUZ": {name: "F8_E4M3FNUZ", blockElements: 1, blockBytes: 1},
		"F8_E5M2FNUZ": {name: "F8_E5M2FNUZ", blockElements: 1, blockBytes: 1},
	}
	for _, name := range []string{
		"BOOL", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64",
		"F4", "F8_E4M3", "F8_E5M2", "F16", "BF16", "F32", "F64", "C64", "C128",
	} {
		d, err := alloc.ParseDType(name)
		if err != nil {
			panic(err) // it is a mistake in the list above
		}
		encoding := blockType{name: name, dtype: d, blockElements: 1, blockBytes: d.Bits() / 8}
		if d.Bits() < 8 {
			encoding.blockElements, encoding.blockBytes = 8/d.Bits(), 1
		}
		encodings[name] = encoding
	}
	return encodings
})

// readSafetensors reads the header of a safetensors file of size bytes. Memory
// follows what the file really holds and not what it claims.
func readSafetensors(r io.ReaderAt, size int64, file string) ([]tensorInfo, error) {
	header, err := safetensorsHeader(r, size, file)
	if err != nil {
		return nil, err
	}
	value, err := strictjson.Read(io.NewSectionReader(r, 8, header))
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, inFile(file, "the header's JSON ends before it is complete")
	case err != nil:
		return nil, &fileError{file: file, reason: "the header is not valid JSON", err: err}
	}
	if bytes.Count(value, []byte(`"data_offsets"`)) > maxTensors+1 { // before they are made; one may be in the metadata
		return nil, tooMany(file)
	}
	d := safetensorsDecoder{file: file, Cursor: strictjson.NewCursor(value)}
	tensors, err := d.tensors()
	if err != nil {
		return nil, err
	}
	if err := checkSafetensorsLayout(tensors, size-8-header, file); err != nil {
		return nil, err
	}
	places, err := d.places()
	if err != nil {
		return nil, err
	}
	for i := range tensors {
		t := &tensors[i]
		t.Offset += 8 + header
		if at, ok := places[t.Name]; ok {
			if len(at.Offsets) != len(t.Shape) || slices.ContainsFunc(at.Offsets, func(n int) bool { return n < 0 }) {
				return nil, atTensor(file, t.Name, "its saved_offsets %v are no place in a tensor of %d dimensions", at.Offsets, len(t.Shape))
			}
			t.at = append(make([]int, 0, len(at.Offsets)), at.Offsets...)
		}
	}
	return tensors, nil
}

// safetensorsHeader returns the header's length.
func safetensorsHeader(r io.ReaderAt, size int64, file string) (int64, error) {
	var start [9]byte
	if size < 9 {
		return 0, inFile(file, "%d bytes are too few for a safetensors file: it is truncated, or no such file", size)
	}
	if _, err := r.ReadAt(start[:], 0); err != nil {
		return 0, &fileError{file: file, reason: "read the header's length", err: err}
	}
	n := binary.LittleEndian.Uint64(start[:8])
	if n > maxSafetensorsHeader {
		return 0, inFile(file, "the header says that it has %d bytes, more than the %d that the format allows", n, maxSafetensorsHeader)
	}
	if int64(n) > size-8 {
		return 0, inFile(file, "the header says that it has %d bytes, but only %d follow: the file is truncated", n, size-8)
	}
	if start[8] != '{' {
		return 0, inFile(file, "the header begins with %q instead of '{': no safetensors file", start[8])
	}
	return int64(n), nil
}

// checkSafetensorsLayout sorts the tensors by offset and checks that they tile
// the data.
func checkSafetensorsLayout(tensors []tensorInfo, data int64, file string) error {
	slices.SortFunc(tensors, func(a, b tensorInfo) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Bytes, b.Bytes))
	})
	end := int64(0)
	for _, t := range tensors {
		switch last := t.Offset + int64(t.Bytes); {
		case last > data:
			return atTensor(file, t.Name, "its data end at offset %d, but the file holds %d bytes of data: truncated, or the header lies", last, data)
		case t.Offset < end:
			return atTensor(file, t.Name, "its data begin at offset %d, inside another tensor's, which end at %d", t.Offset, end)
		case t.Offset > end:
			return atTensor(file, t.Name, "its data begin at offset %d and leave a hole of %d bytes before it", t.Offset, t.Offset-end)
		default:
			end = last
		}
	}
	if end != data {
		return inFile(file, "%d bytes at its end belong to no tensor", data-end)
	}
	return nil
}

// safetensorsDecoder decodes a header.
type safetensorsDecoder struct {
	strictjson.Cursor
	file string
	name string // name of the tensor being decoded

	metadata []byte // the text of __metadata__
}

// place is where in a whole tensor a piece of it begins.
type place struct {
	Offsets []int `json:"saved_offsets"`
}

// places returns the places of the tensors if a rank of torch.distributed.checkpoint saved the file
// (torch/distributed/checkpoint/hf_storage.py, save_distributed=True, of torch 2.15).
func (d *safetensorsDecoder) places() (map[string]place, error) {
	const key = "DCP_SHARDING_INFO"
	if !bytes.Contains(d.metadata, []byte(key)) {
		return nil, nil
	}
	var metadata map[string]any
	var places map[string]place
	err := strictjson.Unmarshal(d.metadata, &metadata)
	text, ok := metadata[key].(string)
	if err == nil && ok {
		err = strictjson.Unmarshal([]byte(text), &places)
	}
	if err != nil {
		return nil, &fileError{file: d.file, where: key, reason: "it is not the JSON that belongs there", err: err}
	}
	return places, nil
}

// maxTensors limits the tensors of one file: the largest models have a hundred thousand, in many
// files.
const maxTensors = 1 << 18

func tooMany(file string) error {
	return inFile(file, "the header has more than %d tensors, and no model has that many in a file", maxTensors)
}

// tensors decodes the whole header.
func (d *safetensorsDecoder) tensors() ([]tensorInfo, error) {
	d.Token() // the opening brace, which safetensorsHeader has checked
	var tensors []tensorInfo
	for d.More() {
		d.name = string(strictjson.Unquote(d.Member()))
		if d.name == "__metadata__" {
			d.metadata = d.Value()
			continue
		}
		t, err := d.tensor()
		if err != nil {
			return nil, err
		}
		if tensors = append(tensors, t); len(tensors) > maxTensors {
			return nil, tooMany(d.file)
		}
	}
	return tensors, nil
}

// tensor decodes {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}. Keys that
// the format does not have are skipped, as the reference does.
func (d *safetensorsDecoder) tensor() (tensorInfo, error) {
	t := tensorInfo{Name: d.name, File: d.file}
	if err := d.open("{"); err != nil {
		return t, err
	}
	var bounds [2]int64
	var offsets []int64
	var err error
	for d.More() {
		switch key := d.Member(); string(key) {
		case `"dtype"`:
			t.encoding, err = d.encoding()
		case `"shape"`:
			t.Shape, err = wholeNumbers(d, "shape", make([]int, 0, 4), maxDims)
		case `"data_offsets"`:
			offsets, err = wholeNumbers(d, "data_offsets", bounds[:0], len(bounds))
		default:
			d.Value()
		}
		if err != nil {
			return t, err
		}
	}
	d.Token() // the closing brace
	if t.encoding.name == "" || t.Shape == nil || len(offsets) != len(bounds) {
		return t, d.errorf("it needs a dtype, a shape and two data_offsets")
	}
	return t, d.checkRange(&t, offsets[0], offsets[1])
}

// checkRange checks that a tensor's size equals that of its range in the data.
func (d *safetensorsDecoder) checkRange(t *tensorInfo, begin, end int64) error {
	if err := t.measure(); err != nil {
		return d.errorf("%w", err)
	}
	if end < begin {
		return d.errorf("its data end at offset %d, before they begin at %d", end, begin)
	}
	if int64(t.Bytes) != end-begin {
		return d.errorf("shape %v of %v takes %d bytes, but its data_offsets [%d, %d] hold %d",
			t.Shape, t.encoding, int64(t.Bytes), begin, end, end-begin)
	}
	t.Offset = begin
	return nil
}

// encoding decodes a dtype.
func (d *safetensorsDecoder) encoding() (blockType, error) {
	value := d.Value()
	if encoding, ok := safetensorsEncodings()[string(bytes.Trim(value, `"`))]; ok && value[0] == '"' {
		return encoding, nil
	}
	return blockType{}, d.errorf("unknown dtype %s: not one of safetensors 0.8", strictjson.Shorten(string(value)))
}

// wholeNumbers decodes the key's array of at most n numbers, appended to dst.
func wholeNumbers[N int | int64](d *safetensorsDecoder, key string, dst []N, n int) ([]N, error) {
	if err := d.open("["); err != nil {
		return nil, err
	}
	for d.More() {
		value := d.Value()
		number, err := strconv.ParseUint(string(value), 10, 63)
		if err != nil || int64(N(number)) != int64(number) || len(dst) == n {
			return nil, d.errorf("%s: %s: want at most %d whole numbers that fit an %T", key, strictjson.Shorten(string(value)), n, N(0))
		}
		dst = append(dst, N(number))
	}
	d.Token() // the closing bracket
	return dst, nil
}

// open reads the beginning of an object or an array.
func (d *safetensorsDecoder) open(bracket string) error {
	if token := d.Token(); string(token) != bracket {
		return d.errorf("a JSON %s where a %s belongs", strictjson.Shorten(string(token)), bracket)
	}
	return nil
}

// errorf is an error at the tensor that is being decoded.
func (d *safetensorsDecoder) errorf(format string, args ...any) error {
	return atTensor(d.file, d.name, format, args...)
}

const indexSuffix = ".safetensors.index.json"

// openIndex reads an index of shards, as transformers' save_pretrained writes it: {"metadata": ...,
// "weight_map": {tensor: file}}, and each shard, of which read returns the tensors and all their names.
// Index and shards must name the same tensors.
func openIndex(path string, read func(path string) ([]tensorInfo, []string, error)) ([]tensorInfo, error) {
	index := filepath.Base(path)
	shardOf, err := readIndex(path)
	if err != nil {
		return nil, err
	}
	var tensors []tensorInfo
	for _, shard := range shardNames(shardOf) {
		if !filepath.IsLocal(shard) || filepath.Base(shard) != shard {
			return nil, inFile(index, "shard %q is not the name of a file beside it", strictjson.Shorten(shard))
		}
		held, names, err := read(filepath.Join(filepath.Dir(path), shard))
		if err != nil {
			return nil, &fileError{file: index, where: fmt.Sprintf("shard %q", shard), err: err}
		}
		for _, name := range names {
			named, ok := shardOf[name]
			switch {
			case !ok:
				return nil, inFile(index, "shard %q holds tensor %q, which the index does not name or which another shard holds too", shard, strictjson.Shorten(name))
			case named != shard:
				return nil, inFile(index, "shard %q holds tensor %q, which the index has in %q", shard, strictjson.Shorten(name), strictjson.Shorten(named))
			}
			delete(shardOf, name)
		}
		tensors = append(tensors, held...)
	}
	for name, shard := range shardOf { // names that no shard had
		return nil, inFile(index, "tensor %q is not in its shard %q", strictjson.Shorten(name), shard)
	}
	return tensors, nil
}

// readShard reads a shard of safetensors.
func readShard(path string) ([]tensorInfo, []string, error) {
	tensors, err := readHeader(path, readSafetensors)
	names := make([]string, len(tensors))
	for i, t := range tensors {
		names[i] = t.Name
	}
	return tensors, names, err
}

func shardNames(shardOf map[string]string) []string {
	var names []string
	for _, shard := range shardOf {
		names = append(names, shard)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// readIndex returns the index's weight_map.
func readIndex(path string) (map[string]string, error) {
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := readJSON(path, maxSafetensorsHeader, &index); err != nil {
		return nil, err
	}
	if len(index.WeightMap) == 0 {
		return nil, inFile(filepath.Base(path), "it has no weight_map: no index of shards")
	}
	return index.WeightMap, nil
}

// readJSON decodes a file of at most most bytes into v. A name that occurs twice is an error; a
// name that v does not have is ignored.
func readJSON(path string, most int64, v any) error {
	file := filepath.Base(path)
	f, size, err := openRegular(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if size > most {
		return inFile(file, "it has %d bytes; such a file has at most %d", size, most)
	}
	if err := strictjson.Decode(f, v); err != nil {
		return &fileError{file: file, reason: "it is not the JSON that belongs here", err: err}
	}
	return nil
}

// openRegular opens a file that is a file: to open a pipe could block forever.
func openRegular(path string) (*os.File, int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, inFile(filepath.Base(path), "it is not a regular file")
	}
	f, err := os.Open(path)
	return f, info.Size(), err
}

// readHeader opens a file for one of the functions that read headers.
func readHeader[T any](path string, read func(io.ReaderAt, int64, string) (T, error)) (T, error) {
	f, size, err := openRegular(path)
	if err != nil {
		var none T
		return none, err
	}
	defer f.Close()
	return read(f, size, filepath.Base(path))
}
