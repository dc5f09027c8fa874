package checkpoint

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/jsontext"
)

const indexSuffix = ".safetensors.index.json"

// openIndex reads an index of safetensors shards, as transformers'
// save_pretrained writes it: {"metadata": ..., "weight_map": {tensor: file}}, and the
// header of each shard. Index and shards must name the same tensors.
func openIndex(path string) ([]tensorInfo, error) {
	index := filepath.Base(path)
	shardOf, err := readIndex(path)
	if err != nil {
		return nil, err
	}
	var tensors []tensorInfo
	for _, shard := range shardNames(shardOf) {
		if !filepath.IsLocal(shard) || filepath.Base(shard) != shard {
			return nil, inFile(index, "shard %q is not the name of a file beside it", jsontext.Shorten(shard))
		}
		held, err := readHeader(filepath.Join(filepath.Dir(path), shard), readSafetensors)
		if err != nil {
			return nil, &fileError{file: index, where: fmt.Sprintf("shard %q", shard), err: err}
		}
		for _, t := range held {
			named, ok := shardOf[t.Name]
			switch {
			case !ok:
				return nil, inFile(index, "shard %q holds tensor %q, which the index does not name or which another shard holds too", shard, jsontext.Shorten(t.Name))
			case named != shard:
				return nil, inFile(index, "shard %q holds tensor %q, which the index has in %q", shard, jsontext.Shorten(t.Name), jsontext.Shorten(named))
			}
			delete(shardOf, t.Name)
		}
		tensors = append(tensors, held...)
	}
	for name, shard := range shardOf { // names that no shard had
		return nil, inFile(index, "tensor %q is not in its shard %q", jsontext.Shorten(name), shard)
	}
	return tensors, nil
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
	if err := jsontext.Decode(f, v); err != nil {
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
