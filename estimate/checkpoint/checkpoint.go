// Package checkpoint reads what a model's files say of its memory: the tensors of
// safetensors and GGUF files, from their headers alone, and the layers that a
// config.json or GGUF metadata describe.
//
//	f, err := checkpoint.ReadFile("Qwen3-8B/config.json")
//	if err != nil {
//		return err
//	}
//	input, err := f.Input(1, 4096)
//	if err != nil {
//		return err
//	}
//	r, err := f.Report(input, estimate.Train("adamw"))
//
// Package estimate has the layers and counts their memory; this package turns
// settings into layers. Families lists the models that it knows.
//
// Files are not trusted: time and memory follow what a file really holds. All
// functions may be called from several goroutines.
package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// File is a model as its files describe it: the tensors, from the headers alone, and the layers, if
// a config.json or GGUF metadata names the architecture. A File does not change after ReadFile; any
// goroutine may use it.
type File struct {
	// Name is the file's name, or the folder's if the file has a name that many models share
	// (model.safetensors, config.json).
	Name string `json:"name"`
	// Format is "safetensors" or "GGUF"; "config" if there is a config.json and no weights.
	Format  string `json:"format"`
	tensors []tensorInfo

	architecture    architecture
	architectureErr error // why there is no architecture
}

// ReadFile reads the headers of a model's files; it reads no weights, so that its time
// follows the number of tensors and not their size. The path is one of
//
//   - a safetensors file;
//   - an index of safetensors shards (model.safetensors.index.json);
//   - a GGUF file; of a split one any part;
//   - a config.json, as Hugging Face's transformers write it, which has layers but
//     no tensors;
//   - a directory that holds one of these. An index goes before the files beside
//     it, safetensors before GGUF, and a config.json belongs to them. A GGUF file
//     named mmproj is not the model;
//   - the model_index.json of a pipeline of diffusers, or its directory; the parts are in folders
//     of their own. The estimate runs the transformer or unet, and the other parts only take
//     memory. If a part is missing, there is no Input, and a note of the report names the part.
//
// A config.json next to a safetensors file or an index describes its layers.
//
// The errors are those of package os, and fs.ErrInvalid for a file that is not what it should be. A wrong
// header is never worked around: tensors that overlap, are missing, run past the end, or have an
// unknown type are an error. Weights of an unknown or badly described architecture can be opened;
// Layers then returns the error. So can a config.json of an unknown family, if it has the numbers
// that Cache needs.
func ReadFile(path string) (*File, error) {
	c, err := openPath(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	c.Name = nameOf(path)
	return c, nil
}

// ParseConfig reads a model from the text of a config.json, such as a zoo.Model's. name is used in
// reports. The errors are those of ReadFile for a wrong file.
func ParseConfig(name string, text []byte) (*File, error) {
	c, err := readConfig(bytes.NewReader(text), int64(len(text)), configName)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	a, err := c.architecture()
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	return &File{Name: name, Format: "config", architecture: a}, nil
}

func openPath(path string) (*File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if filepath.Base(path) == pipelineName && !info.IsDir() {
		return openPipeline(filepath.Dir(path))
	}
	if info.IsDir() {
		if _, err := os.Stat(filepath.Join(path, pipelineName)); err == nil {
			return openPipeline(path)
		}
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
		c := &File{Format: "GGUF", tensors: g.tensors}
		c.architecture, c.architectureErr = g.architecture()
		return c, nil
	case formatConfig:
		a, err := openConfig(path)
		if errors.Is(err, ErrUnknownArchitecture) && a.cache {
			return &File{Format: "config", architecture: a, architectureErr: err}, nil
		}
		return &File{Format: "config", architecture: a}, err
	}
	c := &File{Format: "safetensors"}
	if format == formatIndex {
		c.tensors, err = openIndex(path)
	} else {
		c.tensors, err = readHeader(path, readSafetensors)
	}
	if err != nil {
		return nil, err
	}
	c.architecture, c.architectureErr = openConfig(filepath.Join(filepath.Dir(path), configName))
	if correct := c.architecture.Stored; correct != nil && c.architectureErr == nil {
		correct(&c.architecture.Model, func(tensor string) bool {
			return slices.ContainsFunc(c.tensors, func(t tensorInfo) bool { return t.Name == tensor })
		})
	}
	if errors.Is(c.architectureErr, fs.ErrNotExist) {
		c.architectureErr = fmt.Errorf("no %s beside the weights: %w", configName, ErrNoArchitecture)
	}
	return c, nil
}

// total is the sum over tensors of one encoding.
type total struct {
	encoding blockType
	tensors  int
	elements int64
	bytes    alloc.Bytes
}

// totals returns the sums by encoding, the one with the most bytes first.
func (c *File) totals() []total {
	var totals []total
	at := map[blockType]int{}
	for _, t := range c.tensors {
		i, ok := at[t.encoding]
		if !ok {
			i = len(totals)
			at[t.encoding] = i
			totals = append(totals, total{encoding: t.encoding})
		}
		totals[i].tensors++
		totals[i].elements += t.Elements
		totals[i].bytes += t.Bytes
	}
	slices.SortStableFunc(totals, func(a, b total) int { return compareBytes(b, a) })
	return totals
}

func compareBytes(a, b total) int {
	if a.bytes != b.bytes {
		return int(max(-1, min(1, a.bytes-b.bytes)))
	}
	return strings.Compare(b.encoding.name, a.encoding.name)
}

// parameters returns the number of elements in the tensors that are not buffers. Buffers, which are
// known by their names, are state that is not trained, such as the mean of a batch norm. If a
// format packs several weights into one element of an integer tensor and does not say so, as GPTQ
// in safetensors does, the number is smaller than that of the weights.
func (c *File) parameters() int64 {
	n := int64(0)
	for _, t := range c.tensors {
		if !t.isBuffer() {
			n += t.Elements
		}
	}
	return n
}

// bytes returns the size of all tensors, with buffers, as they are stored.
func (c *File) bytes() alloc.Bytes {
	n := alloc.Bytes(0)
	for _, t := range c.tensors {
		n += t.Bytes
	}
	return n
}

// Architecture returns the family that the files name, such as "llama", and the error
// of Layers where there is none.
func (c *File) Architecture() (string, error) {
	if c.architectureErr != nil {
		return "", fmt.Errorf("checkpoint: architecture of the %s file: %w", c.Format, c.architectureErr)
	}
	return c.architecture.Type, nil
}
