package estimate

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Checkpoint is a model as its files describe it: the tensors that they hold, from
// their headers alone, and the layers, where a config.json or GGUF metadata tell
// the architecture. It is not changed after Open and may be used from any goroutine.
type Checkpoint struct {
	// Name is that of the file or, where the file has the usual name of any model's
	// (model.safetensors, config.json), that of its folder.
	Name string
	// Format is "safetensors" or "GGUF"; "config" if there is a config.json and
	// no weights.
	Format  string
	tensors []StoredTensor

	architecture    architecture
	architectureErr error // why there is none
}

// Open reads the headers of a model's files; it reads no weights, so that its time
// follows the number of tensors and not their size. The path is one of
//
//   - a safetensors file;
//   - an index of safetensors shards (model.safetensors.index.json);
//   - a GGUF file; of a split one any part;
//   - a config.json, as Hugging Face's transformers write it, which has layers but
//     no tensors;
//   - a directory that holds one of these. An index goes before the files beside
//     it, safetensors before GGUF, and a config.json belongs to them.
//
// A config.json beside a safetensors file or an index tells its layers.
//
// The errors are those of package os, and *FileError for a file that is not what
// it should be. A wrong header is never worked around: whatever overlaps, is
// missing, runs past the end, or has an unknown type is an error. Weights whose
// architecture is unknown or badly described open, and Layers returns the error.
func Open(path string) (*Checkpoint, error) {
	c, err := openPath(path)
	if err != nil {
		return nil, fmt.Errorf("estimate: %w", err)
	}
	c.Name = nameOf(path)
	return c, nil
}

// nameOf is what people call the model at a path.
func nameOf(path string) string {
	if full, err := filepath.Abs(path); err == nil {
		path = full
	}
	name := filepath.Base(path)
	for _, suffix := range []string{indexSuffix, ".safetensors", ".gguf", ".json"} {
		if stem, ok := strings.CutSuffix(name, suffix); ok {
			if stem == "model" || name == configName {
				return filepath.Base(filepath.Dir(path))
			}
			return stem
		}
	}
	return name
}

func openPath(path string) (*Checkpoint, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		if path, err = findModel(path); err != nil {
			return nil, err
		}
	}
	format, err := formatOf(path)
	if err != nil {
		return nil, err
	}
	switch format {
	case formatGGUF:
		g, err := openGGUF(path)
		if err != nil {
			return nil, err
		}
		c := &Checkpoint{Format: "GGUF", tensors: g.tensors}
		c.architecture, c.architectureErr = g.architecture()
		return c, nil
	case formatConfig:
		a, err := openConfig(path)
		return &Checkpoint{Format: "config", architecture: a}, err
	}
	c := &Checkpoint{Format: "safetensors"}
	if format == formatIndex {
		c.tensors, err = openIndex(path)
	} else {
		c.tensors, err = readHeader(path, readSafetensors)
	}
	if err != nil {
		return nil, err
	}
	c.architecture, c.architectureErr = openConfig(filepath.Join(filepath.Dir(path), configName))
	if errors.Is(c.architectureErr, fs.ErrNotExist) {
		c.architectureErr = fmt.Errorf("no %s beside the weights: %w", configName, ErrNoArchitecture)
	}
	return c, nil
}

const (
	configName  = "config.json"
	indexSuffix = ".safetensors.index.json"
)

// findModel returns the file in a directory that Open should read.
func findModel(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, suffix := range []string{indexSuffix, ".safetensors", ".gguf", configName} {
		var found []string
		for _, entry := range entries {
			if name := entry.Name(); strings.HasSuffix(name, suffix) && (suffix != configName || name == configName) {
				found = append(found, name)
			}
		}
		if suffix == ".gguf" && len(found) > 1 && isSplit(found) {
			found = found[:1]
		}
		switch len(found) {
		case 0:
		case 1:
			return filepath.Join(dir, found[0]), nil
		default:
			return "", inFile(filepath.Base(dir), "the folder holds %d models, %s and %s among them: open one of them by its name", len(found), found[0], found[1])
		}
	}
	return "", inFile(filepath.Base(dir), "the folder holds no safetensors file, no GGUF file and no %s", configName)
}

type modelFormat int

const (
	formatSafetensors modelFormat = iota + 1
	formatIndex
	formatGGUF
	formatConfig
)

// formatOf tells a file's format by its name, so that the error of a damaged file
// can say what is damaged, and by its first bytes where the name tells nothing.
func formatOf(path string) (modelFormat, error) {
	file := filepath.Base(path)
	switch {
	case strings.HasSuffix(file, ".safetensors"):
		return formatSafetensors, nil
	case strings.HasSuffix(file, indexSuffix):
		return formatIndex, nil
	case strings.HasSuffix(file, ".gguf"):
		return formatGGUF, nil
	case strings.HasSuffix(file, ".json"):
		return formatConfig, nil
	}
	return readHeader(path, func(r io.ReaderAt, size int64, file string) (modelFormat, error) {
		start := make([]byte, min(size, 9))
		if _, err := r.ReadAt(start, 0); err != nil {
			return 0, &FileError{File: file, Err: err}
		}
		switch {
		case strings.HasPrefix(string(start), "GGUF"):
			return formatGGUF, nil
		case strings.HasPrefix(string(start), "PK\x03\x04"):
			return 0, inFile(file, "it is a ZIP file, perhaps PyTorch's, which holds code and is not read: save it as safetensors")
		case len(start) == 9 && start[8] == '{':
			return formatSafetensors, nil
		}
		return 0, inFile(file, "neither its name nor its first bytes are those of safetensors, GGUF or %s", configName)
	})
}

// Tensors returns the tensors, file by file, in the order of their data. There are
// none if only a config.json was opened.
func (c *Checkpoint) Tensors() iter.Seq[StoredTensor] { return slices.Values(c.tensors) }

// Total is the sum over tensors of one encoding.
type Total struct {
	Encoding Encoding
	Tensors  int
	Elements int64
	Bytes    alloc.Bytes
}

// Totals returns the sums by encoding, the one with the most bytes first.
func (c *Checkpoint) Totals() []Total {
	var totals []Total
	at := map[Encoding]int{}
	for _, t := range c.tensors {
		i, ok := at[t.Encoding]
		if !ok {
			i = len(totals)
			at[t.Encoding] = i
			totals = append(totals, Total{Encoding: t.Encoding})
		}
		totals[i].Tensors++
		totals[i].Elements += t.Elements
		totals[i].Bytes += t.Bytes
	}
	slices.SortStableFunc(totals, func(a, b Total) int { return compareBytes(b, a) })
	return totals
}

func compareBytes(a, b Total) int {
	if a.Bytes != b.Bytes {
		return int(max(-1, min(1, a.Bytes-b.Bytes)))
	}
	return strings.Compare(b.Encoding.Name, a.Encoding.Name)
}

// Parameters returns the number of elements in the tensors that are no buffers (see
// StoredTensor.IsBuffer). A format that packs several weights into each element of an
// integer tensor without saying so, as GPTQ does in safetensors, has fewer elements than weights.
func (c *Checkpoint) Parameters() int64 {
	n := int64(0)
	for _, t := range c.tensors {
		if !t.IsBuffer() {
			n += t.Elements
		}
	}
	return n
}

// Bytes returns the size of all tensors, buffers too: what it takes to load them
// as they are stored.
func (c *Checkpoint) Bytes() alloc.Bytes {
	n := alloc.Bytes(0)
	for _, t := range c.tensors {
		n += t.Bytes
	}
	return n
}

// Architecture returns the family that the files name, such as "llama", and the error
// of Layers where there is none.
func (c *Checkpoint) Architecture() (string, error) {
	if c.architectureErr != nil {
		return "", fmt.Errorf("estimate: architecture of the %s file: %w", c.Format, c.architectureErr)
	}
	return c.architecture.family, nil
}
