// Package checkpoint reads what a model's files say of its memory: the tensors of
// safetensors and GGUF files and of PyTorch's checkpoints, from their headers alone, and the
// layers that a config.json or GGUF metadata describe.
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
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/strictjson"
)

// File is a model as its files describe it: the tensors, from the headers alone, and the layers, if
// a config.json or GGUF metadata names the architecture. A File does not change after ReadFile; any
// goroutine may use it.
type File struct {
	// Name is the file's name, or the folder's if the file has a name that many models share
	// (model.safetensors, config.json).
	Name string `json:"name"`
	// Format is "safetensors", "GGUF", "torch.save" or "torch.distributed.checkpoint"; "config" if there is a config.json and no weights.
	Format  string `json:"format"`
	tensors []tensorInfo

	architecture    architecture
	architectureErr error    // why there is no architecture
	notes           []string // what Notes returns
}

// Notes say what the files hold beside a model's weights, and what of a model they lack: that a
// file is one piece of a model, or how much of it is an optimizer's state. A Report has them too.
func (c *File) Notes() []string { return slices.Clone(c.notes) }

// ReadFile reads the headers of a model's files; it reads no weights, so that its time
// follows the number of tensors and not their size. The path is one of
//
//   - a safetensors file;
//   - an index of safetensors shards (model.safetensors.index.json);
//   - a GGUF file; of a split one any part;
//   - a file that torch.save wrote (.pt, .pth, .bin, .ckpt), or an index of such shards
//     (pytorch_model.bin.index.json). Nothing that the file names is called. Tensors that share a
//     storage count once, and a storage counts whole. If the file has a model beside other
//     things, such as an optimizer's state, only the model counts, and Notes says what does not.
//     The form before PyTorch 1.6, which is no ZIP file, is an error;
//   - the .metadata of torch.distributed.checkpoint, which describes what all ranks saved. A
//     .distcp file, which is one piece, is an error;
//   - a config.json, as Hugging Face's transformers write it, which has layers but
//     no tensors;
//   - a directory that holds one of these. An index goes before the files beside
//     it, safetensors before GGUF, these before PyTorch's formats, and a config.json belongs to
//     them. A GGUF file named mmproj is not the model;
//   - a directory of the safetensors files that ranks of torch.distributed.checkpoint saved
//     (HuggingFaceStorageWriter with save_distributed), which are joined. Of a single one Notes says
//     that it is a piece;
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
		if pieces, err := findPieces(path); err != nil {
			return nil, err
		} else if len(pieces) > 0 {
			c, err := openPieces(path, pieces)
			if err == nil {
				c.describe(path)
			}
			return c, err
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
	c, err := openWeights(path, format)
	if err != nil {
		return nil, err
	}
	c.describe(filepath.Dir(path))
	return c, nil
}

// openWeights opens files of weights that a config.json may describe.
func openWeights(path string, format modelFormat) (*File, error) {
	switch format {
	case formatIndex:
		tensors, err := openIndex(path, readShard)
		return &File{Format: "safetensors", tensors: tensors}, err
	case formatTorch:
		return openTorch(path)
	case formatTorchIndex:
		return openTorchIndex(path)
	case formatMetadata:
		return openMetadata(path)
	}
	tensors, err := readHeader(path, readSafetensors)
	return &File{Format: "safetensors", tensors: tensors, notes: pieceNote(tensors)}, err
}

// describe reads the config.json beside weights.
func (c *File) describe(dir string) {
	c.architecture, c.architectureErr = openConfig(filepath.Join(dir, configName))
	if correct := c.architecture.Stored; correct != nil && c.architectureErr == nil {
		correct(&c.architecture.Model, func(tensor string) bool {
			return slices.ContainsFunc(c.tensors, func(t tensorInfo) bool { return t.Name == tensor })
		})
	}
	if errors.Is(c.architectureErr, fs.ErrNotExist) {
		c.architectureErr = fmt.Errorf("no %s beside the weights: %w", configName, ErrNoArchitecture)
	}
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

// Stored is what a model's files hold in one element type.
type Stored struct {
	Type     string      `json:"type"` // by the file format's own name, such as "BF16" or "Q4_K"
	Tensors  int         `json:"tensors"`
	Elements int64       `json:"elements"`
	Bytes    alloc.Bytes `json:"bytes"`
}

// Stored returns the exact size of the tensors in the files by element type, the type with the most
// bytes first, buffers included. It needs no architecture. There are none if the files hold no weights.
func (c *File) Stored() []Stored {
	var all []Stored
	for _, t := range c.totals() {
		all = append(all, Stored{Type: t.encoding.name, Tensors: t.tensors, Elements: t.elements, Bytes: t.bytes})
	}
	return all
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

// NotRead returns the keys of the config.json, or of those of a pipeline's parts, that may bear on
// sizes and that Layers does not take into account. Keys within an object follow its name, as in
// "vision_config.head_dim". If the architecture is unknown, but not that of the text whose keys and values Cache
// counts, they are those of the text.
//
// A key is not among them if it bears on no size in any model (such as the numbers of tokens, and
// what the loss does), or if it has the value that transformers takes for a missing key: the layers
// are those of models that have it. A report's upper bounds grow by the share that a number differs
// from that default, and by the whole estimate if it differs more or is no number. Keys that the
// type has in no version of transformers that is known, and that its code therefore does not read,
// are named but leave the bounds as they are. What changes single layers, such as per_layer_config,
// is an error in place of that.
func (c *File) NotRead() []string { return slices.Clone(c.architecture.Unread.Keys) }

// Architecture returns the family that the files name, such as "llama", and the error
// of Layers where there is none.
func (c *File) Architecture() (string, error) {
	if c.architectureErr != nil {
		return "", fmt.Errorf("checkpoint: architecture of the %s file: %w", c.Format, c.architectureErr)
	}
	return c.architecture.Type, nil
}

// WholeImages reports whether the tokens of an image attend to each other in both directions, as in the larger models of Gemma 4:
// engines run such an image in one step.
func (c *File) WholeImages() bool { return c.architecture.WholeImages && c.architecture.Vision != nil }

// ContextLength returns the number of tokens of a text for which the model was made: of positions that it learned, or else what
// its file says. 0 means that neither is known.
func (c *File) ContextLength() int { return c.architecture.ContextLength() }

// ImageSide returns the side of the images that the model makes, in pixels; images are square. It is 0 if it makes none.
func (c *File) ImageSide() int { return c.architecture.ImageSide() }

// HasTowers reports whether the model reads images or sounds with a text, and so has a tower for them.
func (c *File) HasTowers() bool { return c.architecture.Vision != nil || c.architecture.Audio != nil }

// findModel returns the file in a directory that ReadFile should read.
func findModel(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	is := func(suffix, name string) bool {
		switch suffix {
		case configName, metadataName:
			return name == suffix
		case torchSuffixes[0]:
			return isTorchModel(dir, name)
		}
		return strings.HasSuffix(name, suffix)
	}
	for _, suffix := range []string{indexSuffix, ".safetensors", ".gguf", metadataName, torchIndexSuffix, torchSuffixes[0], configName} {
		var found []string
		for _, entry := range entries {
			if is(suffix, entry.Name()) {
				found = append(found, entry.Name())
			}
		}
		if models := slices.DeleteFunc(slices.Clone(found), isProjector); len(models) > 0 {
			found = models
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
	return "", inFile(filepath.Base(dir), "the folder holds no checkpoint of PyTorch, no safetensors file, no GGUF file and no %s", configName)
}

// isProjector reports whether a file's name is that of a projector beside a model, as llama.cpp's
// converter and download tools name them.
func isProjector(name string) bool {
	return strings.HasSuffix(name, ".gguf") && strings.Contains(strings.ToLower(name), "mmproj")
}

type modelFormat int

const (
	formatSafetensors modelFormat = iota + 1
	formatIndex
	formatGGUF
	formatConfig
	formatTorch
	formatTorchIndex
	formatMetadata
)

// formatOf identifies a file's format by its name, so that the error of a damaged file
// can say what is damaged, and by its first bytes where the name says nothing.
func formatOf(path string) (modelFormat, error) {
	file := filepath.Base(path)
	switch {
	case strings.HasSuffix(file, ".safetensors"):
		return formatSafetensors, nil
	case strings.HasSuffix(file, indexSuffix):
		return formatIndex, nil
	case strings.HasSuffix(file, ".gguf"):
		return formatGGUF, nil
	case strings.HasSuffix(file, torchIndexSuffix):
		return formatTorchIndex, nil
	case file == metadataName:
		return formatMetadata, nil
	case strings.HasSuffix(file, pieceSuffix):
		return 0, inFile(file, "it is one piece of a checkpoint of torch.distributed.checkpoint: open its folder, whose %s describes the whole", metadataName)
	case strings.HasSuffix(file, ".json"):
		return formatConfig, nil
	}
	return readHeader(path, func(r io.ReaderAt, size int64, file string) (modelFormat, error) {
		start := make([]byte, min(size, 9))
		if _, err := r.ReadAt(start, 0); err != nil {
			return 0, &fileError{file: file, err: err}
		}
		switch {
		case strings.HasPrefix(string(start), "GGUF"):
			return formatGGUF, nil
		case strings.HasPrefix(string(start), "PK\x03\x04"):
			return formatTorch, nil
		case strings.HasPrefix(legacyTorch, string(start)) && len(start) == 9:
			return 0, inFile(file, "torch.save wrote it in the form before PyTorch 1.6, which is not read: write it again by torch.save(torch.load(FILE, weights_only=True), FILE)")
		case len(start) == 9 && start[8] == '{':
			return formatSafetensors, nil
		}
		return 0, inFile(file, "neither its name nor its first bytes are those of safetensors, GGUF, torch.save or %s", configName)
	})
}

// nameOf returns what people call the model at a path.
func nameOf(path string) string {
	if full, err := filepath.Abs(path); err == nil {
		path = full
	}
	name := filepath.Base(path)
	for _, suffix := range slices.Concat([]string{indexSuffix, torchIndexSuffix, ".safetensors", ".gguf", ".json", metadataName}, torchSuffixes) {
		if stem, ok := strings.CutSuffix(name, suffix); ok {
			if stem == "" || stem == "model" || stem == "pytorch_model" || name == configName || name == pipelineName {
				return filepath.Base(filepath.Dir(path))
			}
			return stem
		}
	}
	return name
}

// blockType is how a file stores the elements of a tensor: in blocks, each of
// blockElements elements in blockBytes bytes. For most types a block is one
// element; a quantized type packs some hundred of them with their scales.
type blockType struct {
	name string // the file format's own
	// dtype is the element type; zero for the types that only exist in blocks
	// (GGUF's quantized ones) or that package alloc does not have (F8_E8M0).
	dtype alloc.DType
	// blockElements and blockBytes are both at least 1.
	blockElements, blockBytes int
}

func (e blockType) String() string { return e.name }

// size returns the storage of a number of elements. It is an error if they do not
// fill whole blocks or the size does not fit.
func (e blockType) size(elements int64) (alloc.Bytes, error) {
	if elements%int64(e.blockElements) != 0 {
		return 0, fmt.Errorf("%d elements do not fill whole blocks of %d, as %s has them", elements, e.blockElements, e.name)
	}
	blocks := elements / int64(e.blockElements)
	if blocks > math.MaxInt64/int64(e.blockBytes) {
		return 0, fmt.Errorf("the size of %d elements of %s overflows 64 bits", elements, e.name)
	}
	return alloc.Bytes(blocks * int64(e.blockBytes)), nil
}

// tensorInfo is one tensor of a model file, as the file's header describes it.
type tensorInfo struct {
	Name     string
	Encoding string      // the file format's own name of the element type, such as "BF16" or "Q4_K"
	Shape    alloc.Shape // the outermost dimension first, also where the format has it last
	Elements int64
	Bytes    alloc.Bytes
	File     string // its name, without the folder
	Offset   int64  // of the data, in bytes from the file's start
	encoding blockType
	at       []int // of a piece of a tensor, its place in the whole; nil of whole tensors
	buffer   bool  // the file says that it is a buffer
}

// isBuffer reports whether the tensor is state that is stored with a model and is
// no parameter. Files do not say so: it goes by the names under which PyTorch's
// batch norm and the models of Hugging Face's transformers register their buffers.
func (t tensorInfo) isBuffer() bool {
	if t.buffer {
		return true
	}
	module, name := "", t.Name
	if dot := strings.LastIndexByte(t.Name, '.'); dot >= 0 {
		module, name = t.Name[:dot], t.Name[dot+1:]
	}
	switch name {
	case "running_mean", "running_var", "num_batches_tracked", "position_ids", "masked_bias":
		return true
	case "inv_freq":
		return strings.HasSuffix(module, "rotary_emb")
	case "bias": // GPT-2's causal mask (1, 1, context, context)
		return strings.HasSuffix(module, "attn") && len(t.Shape) == 4
	}
	return false
}

// maxDims limits a tensor's dimensions; PyTorch and NumPy have the same limit.
const maxDims = 64

// measure fills in the tensor's elements and bytes from its shape and encoding.
func (t *tensorInfo) measure() error {
	t.Encoding = t.encoding.name
	var err error
	if t.Elements, err = t.Shape.Elements(); err != nil {
		return err
	}
	t.Bytes, err = t.encoding.size(t.Elements)
	return err
}

// ErrUnknownArchitecture says, by errors.Is, that this package cannot build the model's layers. Its
// tensors are known all the same.
var ErrUnknownArchitecture = family.ErrUnknown

// ErrNoArchitecture says that a model's files hold tensors only: no config.json or metadata says
// how they are connected.
var ErrNoArchitecture = errors.New("no architecture")

// fileError says what is wrong with a model file, and where in it. It is an fs.ErrInvalid.
type fileError struct {
	file   string // its name
	where  string // place in the file: a tensor, a key, a byte offset; may be empty
	reason string
	err    error // the error beneath; may be nil
}

// Error returns file, place, and reason.
func (e *fileError) Error() string {
	text := "open " + e.file + ": "
	if e.where != "" {
		text += e.where + ": "
	}
	if e.err == nil {
		return text + e.reason
	}
	if e.reason == "" {
		return text + e.err.Error()
	}
	return text + e.reason + ": " + e.err.Error()
}

// Unwrap returns the error beneath.
func (e *fileError) Unwrap() error { return e.err }

// Is makes the error an fs.ErrInvalid.
func (e *fileError) Is(target error) bool { return target == fs.ErrInvalid }

// atTensor is an error at a tensor.
func atTensor(file, tensor, format string, args ...any) error {
	return &fileError{file: file, where: fmt.Sprintf("tensor %q", strictjson.Shorten(tensor)), err: fmt.Errorf(format, args...)}
}

// inFile is an error of the whole file.
func inFile(file, format string, args ...any) error {
	return &fileError{file: file, reason: fmt.Sprintf(format, args...)}
}
