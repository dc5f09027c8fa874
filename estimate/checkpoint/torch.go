package checkpoint

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/strictjson"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/torchsave"
)

// Files of torch.save, and the folders of torch.distributed.checkpoint.

const (
	torchIndexSuffix = ".bin.index.json"
	metadataName     = ".metadata"
	pieceSuffix      = ".distcp"
)

// torchSuffixes are the names that files of torch.save have.
var torchSuffixes = []string{".bin", ".pt", ".pth", ".ckpt"}

// trainingFiles begin the names of what a Trainer of transformers, or accelerate, saves beside a model.
var trainingFiles = []string{"training_args", "optimizer", "scheduler", "rng_state", "random_states", "scaler", "sampler"}

// isTorchModel reports whether a file of a folder is by its name and its first bytes a model that torch.save wrote:
// other programs too name their files so.
func isTorchModel(dir, name string) bool {
	has := func(affix func(s, part string) bool) func(string) bool {
		return func(part string) bool { return affix(name, part) }
	}
	if !slices.ContainsFunc(torchSuffixes, has(strings.HasSuffix)) || slices.ContainsFunc(trainingFiles, has(strings.HasPrefix)) {
		return false
	}
	format, err := formatOf(filepath.Join(dir, name))
	return err == nil && format == formatTorch
}

// legacyTorch begins a file that torch.save wrote before PyTorch 1.6: the pickle of its magic number.
const legacyTorch = "\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."

// torchEncodings are torch's names of the types that safetensors has too.
var torchEncodings = map[string]string{
	"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL",
	"int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
	"complex64": "C64", "complex128": "C128", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
	"float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
}

// torchFile is a model as torchsave reads it.
type torchFile struct {
	tensors []tensorInfo
	names   []string // with those of tensors that share a storage
	notes   []string
}

// readTorch reads a file with one of the functions of package torchsave.
func readTorch(path string, read func(io.ReaderAt, int64) (*torchsave.File, error)) (torchFile, error) {
	return readHeader(path, func(r io.ReaderAt, size int64, file string) (torchFile, error) {
		f, err := read(r, size)
		if err != nil {
			return torchFile{}, &fileError{file: file, err: err}
		}
		t := torchFile{names: f.Names}
		for _, s := range f.Tensors {
			encoding, ok := safetensorsEncodings()[torchEncodings[s.Type]]
			if !ok { // the storage's size is known all the same
				encoding = blockType{name: strictjson.Shorten(s.Type), blockElements: 1, blockBytes: 1}
			}
			t.tensors = append(t.tensors, tensorInfo{
				Name: s.Name, Encoding: encoding.name, encoding: encoding, Shape: s.Shape, Elements: s.Elements, Bytes: alloc.Bytes(s.Bytes), File: file, buffer: s.Buffer,
			})
		}
		if len(t.tensors) == 0 {
			return torchFile{}, inFile(file, "it holds no tensors of a model; others that are in it: %d", f.Rest.Tensors)
		}
		if shared := len(f.Names) - len(f.Tensors); shared > 0 {
			t.notes = append(t.notes, fmt.Sprintf("tensors that share the memory of others, and count once: %d", shared))
		}
		if f.Rest.Tensors > 0 {
			where := "the rest of the file"
			if f.Part != "" {
				where = fmt.Sprintf("what is not under %q", f.Part)
			}
			t.notes = append(t.notes, fmt.Sprintf("not weights, and not counted: %v, of %s, such as an optimizer's state (tensors: %d)", alloc.Bytes(f.Rest.Bytes), where, f.Rest.Tensors))
		}
		if f.NoData > 0 {
			t.notes = append(t.notes, fmt.Sprintf("tensors of the meta device, of which the file has no data, and which are not counted: %d", f.NoData))
		}
		return t, nil
	})
}

// openTorch opens a file of torch.save.
func openTorch(path string) (*File, error) {
	t, err := readTorch(path, torchsave.ReadArchive)
	return &File{Format: "torch.save", tensors: t.tensors, notes: t.notes}, err
}

// openMetadata opens a checkpoint of torch.distributed.checkpoint.
func openMetadata(path string) (*File, error) {
	t, err := readTorch(path, torchsave.ReadMetadata)
	return &File{Format: "torch.distributed.checkpoint", tensors: t.tensors, notes: t.notes}, err
}

// openTorchIndex opens an index of shards of torch.save.
func openTorchIndex(path string) (*File, error) {
	c := &File{Format: "torch.save"}
	var err error
	c.tensors, err = openIndex(path, func(shard string) ([]tensorInfo, []string, error) {
		t, err := readTorch(shard, torchsave.ReadArchive)
		c.notes = append(c.notes, t.notes...)
		return t.tensors, t.names, err
	})
	return c, err
}

// isPiece reports whether a file's name is one of those that torch.distributed.checkpoint's
// HuggingFaceStorageWriter gives to what a rank saves.
func isPiece(name string) bool {
	number, ok := strings.CutPrefix(name, "shard-")
	return ok && len(number) > 6 && strings.Trim(number[:5], "0123456789") == "" && number[5] == '-' && strings.HasSuffix(name, ".safetensors")
}

// findPieces returns the pieces that are a folder's model; none if the model is in a file of its own.
func findPieces(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var pieces []string
	for _, entry := range entries {
		switch name := entry.Name(); {
		case isPiece(name):
			pieces = append(pieces, name)
		case strings.HasSuffix(name, indexSuffix), strings.HasSuffix(name, ".safetensors"):
			return nil, nil
		}
	}
	return pieces, nil
}

// openPieces joins the pieces of each tensor that the files have.
func openPieces(dir string, names []string) (*File, error) {
	folder := filepath.Base(dir)
	var order []string
	of := map[string][]tensorInfo{}
	for i, name := range names {
		if want := fmt.Sprintf("shard-%05d-", i+1); !strings.HasPrefix(name, want) {
			return nil, inFile(folder, "it holds %s where %s... belongs: a piece of the model is missing, or ranks saved several files each, which is not read: consolidate them", name, want)
		}
		tensors, err := readHeader(filepath.Join(dir, name), readSafetensors)
		if err != nil {
			return nil, err
		}
		for _, t := range tensors {
			if t.at == nil {
				return nil, atTensor(name, t.Name, "its place in the whole tensor is not in the file (DCP_SHARDING_INFO)")
			}
			if of[t.Name] == nil {
				order = append(order, t.Name)
			}
			of[t.Name] = append(of[t.Name], t)
		}
	}
	c := &File{Format: "safetensors", notes: []string{fmt.Sprintf("joined from %d pieces that torch.distributed.checkpoint saved; the files do not say how many there were", len(names))}}
	for _, name := range order {
		whole, err := join(of[name])
		if err != nil {
			return nil, atTensor(folder, name, "%w", err)
		}
		c.tensors = append(c.tensors, whole)
	}
	return c, nil
}

// join returns the tensor that pieces make up.
func join(pieces []tensorInfo) (tensorInfo, error) {
	whole := pieces[0]
	whole.Shape = make(alloc.Shape, len(whole.Shape))
	held := int64(0)
	places := map[string]bool{}
	for _, p := range pieces {
		if p.encoding != whole.encoding || len(p.Shape) != len(whole.Shape) {
			return whole, fmt.Errorf("its pieces are %v of %v and %v of %v", pieces[0].Shape, whole.encoding, p.Shape, p.encoding)
		}
		for i, side := range p.Shape {
			end := side + p.at[i]
			if end < side {
				return whole, fmt.Errorf("the place %v of a piece of %v overflows", p.at, p.Shape)
			}
			whole.Shape[i] = max(whole.Shape[i], end)
		}
		if place := fmt.Sprint(p.at); p.Elements > 0 && places[place] {
			return whole, fmt.Errorf("two pieces begin at %v", p.at)
		} else if p.Elements > 0 {
			places[place] = true
		}
		if held += p.Elements; held < 0 {
			return whole, fmt.Errorf("the number of elements of its pieces overflows")
		}
	}
	whole.at, whole.File, whole.Offset = nil, "", 0
	if err := whole.measure(); err != nil {
		return whole, err
	}
	if held != whole.Elements {
		return whole, fmt.Errorf("its pieces hold %d of the %d elements of %v: a piece is missing", held, whole.Elements, whole.Shape)
	}
	return whole, nil
}

// pieceNote says that a file alone is a piece of a model, if it is.
func pieceNote(tensors []tensorInfo) []string {
	for _, t := range tensors {
		if t.at != nil {
			return []string{"this file is one piece of a model, as a rank of torch.distributed.checkpoint saved it (DCP_SHARDING_INFO): open its folder for the whole model"}
		}
	}
	return nil
}
