package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/diffusion"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/jsontext"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// pipelineName is the file that makes a folder a diffusers pipeline. It names the parts, each in a
// folder of its own.
const pipelineName = "model_index.json"

// maxParts bounds the parts of a pipeline; the largest have some ten.
const maxParts = 64

// pipeline is what the files of a folder say about a diffusion.Pipeline.
type pipeline struct {
	name    string       // name of the part that runs
	runs    architecture // that part
	others  []part       // the parts that do not run, in order
	missing []string     // those whose weights are not known
	planned []string     // parts with a config.json but no weights
}

// part is a model of a pipeline.
type part struct {
	name    string
	tensors []tensorInfo
	images  family.Images // where it is known and of images
}

// whole is the pipeline as its family has it.
func (p pipeline) whole() diffusion.Pipeline {
	w := diffusion.Pipeline{Name: p.name, Runs: p.runs.Model}
	for _, o := range p.others {
		w.Held = append(w.Held, diffusion.Held{Name: o.name, Stored: o.params(), Images: o.images})
	}
	return w
}

// Layers returns the layers of all parts, with the part that runs last.
func (p pipeline) Layers() []tape.Layer { return p.whole().Layers() }

// Inputs returns the inputs of the part that runs.
func (p pipeline) Inputs(batch, length int) []family.Input { return p.runs.Inputs(batch, length) }

// Resized is the pipeline that makes images of another side.
func (p pipeline) Resized(side int) (family.Images, error) {
	err := p.runs.Resize(side)
	return p, err
}

// note says which parts are not counted.
func (p pipeline) note() string {
	return "not counted, since the folder has no safetensors of it: " + strings.Join(p.missing, ", ")
}

// notes say how the parts are counted that are not in the folder.
func (p pipeline) notes() []string {
	var notes []string
	if len(p.missing) > 0 {
		notes = append(notes, p.note())
	}
	if len(p.planned) > 0 {
		notes = append(notes, "counted by its config.json, since the folder has no safetensors of it: "+strings.Join(p.planned, ", "))
	}
	return notes
}

// NotTrained are the names of the parts that are held.
func (p pipeline) NotTrained() []string { return p.whole().NotTrained() }

// params are the tensors as parameters. Those of floating point take the type of the model.
func (p part) params() []tape.Param {
	params := make([]tape.Param, len(p.tensors))
	for i, t := range p.tensors {
		params[i] = tape.Param{Name: t.Name, Shape: t.Shape, DType: t.encoding.dtype, Buffer: t.isBuffer()}
		switch t.encoding.dtype {
		case alloc.Float32, alloc.Float16, alloc.BFloat16:
			params[i].DType = 0
		}
	}
	return params
}

// openPipeline reads the parts that a folder's model_index.json names.
func openPipeline(dir string) (*File, error) {
	classes, err := readHeader(filepath.Join(dir, pipelineName), readPipeline)
	if err != nil {
		return nil, err
	}
	c := &File{Format: "config", architectureErr: fmt.Errorf("the pipeline has no transformer and no unet: %w", ErrUnknownArchitecture)}
	var p pipeline
	var unknown error // why the model that would run is not known
	for _, name := range slices.Sorted(maps.Keys(classes)) {
		f, err := openPart(filepath.Join(dir, name))
		if runs := name == "transformer" || name == "unet"; errors.Is(err, ErrUnknownArchitecture) {
			if runs {
				unknown = fmt.Errorf("part %s: %w", name, err)
			}
			f, err = nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("part %s: %w", name, err)
		}
		if f == nil {
			p.missing = append(p.missing, fmt.Sprintf("%s (%s)", name, jsontext.Shorten(classes[name])))
			continue
		}
		if len(f.tensors) == 0 {
			p.planned = append(p.planned, name)
		}
		for _, t := range f.tensors {
			t.Name = name + "." + t.Name
			c.tensors, c.Format = append(c.tensors, t), f.Format
		}
		if name == "transformer" || name == "unet" {
			p.name, p.runs, c.architectureErr = name, f.architecture, f.architectureErr
			continue
		}
		p.others = append(p.others, part{name, f.tensors, f.architecture.Images})
	}
	if unknown != nil {
		c.architectureErr = unknown
	}
	if len(c.tensors) == 0 && p.name == "" {
		if unknown != nil {
			return nil, unknown
		}
		return nil, inFile(pipelineName, "no folder beside it holds a model")
	}
	c.architecture = architecture{Model: family.Model{Type: p.runs.Type, Images: p}, dtype: p.runs.dtype, quantized: p.runs.quantized}
	return c, nil
}

// readPipeline returns the class of each part that has weights, by name.
func readPipeline(r io.ReaderAt, size int64, file string) (map[string]string, error) {
	if size > maxConfigFile {
		return nil, inFile(file, "it has %d bytes; a %s has at most %d", size, pipelineName, maxConfigFile)
	}
	text, err := jsontext.Read(io.NewSectionReader(r, 0, size))
	var members map[string]json.RawMessage
	if err == nil {
		err = jsontext.Unmarshal(text, &members)
	}
	if err != nil {
		return nil, &fileError{file: file, reason: "it is not the JSON of a " + pipelineName, err: err}
	}
	classes := map[string]string{}
	for name, value := range members {
		var class [2]*string
		if json.Unmarshal(value, &class) != nil || class[0] == nil || class[1] == nil || weightless(*class[1]) {
			continue // a setting, or a part that there is not
		}
		if !filepath.IsLocal(name) || filepath.Base(name) != name {
			return nil, inFile(file, "part %q is not the name of a folder beside it", jsontext.Shorten(name))
		}
		classes[name] = *class[1]
	}
	if len(classes) > maxParts {
		return nil, inFile(file, "it names %d parts, more than %d", len(classes), maxParts)
	}
	return classes, nil
}

// weightless reports whether a class of a pipeline has no weights.
func weightless(class string) bool {
	return slices.ContainsFunc([]string{"Tokenizer", "TokenizerFast", "Scheduler", "Processor", "FeatureExtractor"}, func(end string) bool {
		return strings.HasSuffix(class, end)
	})
}

// usualWeights are the files that diffusers and transformers load, where there are others beside them.
var usualWeights = []string{"diffusion_pytorch_model" + indexSuffix, "diffusion_pytorch_model.safetensors", "model" + indexSuffix, "model.safetensors"}

// openPart reads the model of a part, or returns nil if the folder has none, or only a config.json
// that says too little. For an unknown config.json the error is ErrUnknownArchitecture.
func openPart(dir string) (*File, error) {
	path := ""
	for _, name := range usualWeights {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil && path == "" {
			path = filepath.Join(dir, name)
		}
	}
	if path == "" {
		found, err := findModel(dir)
		if _, ok := errors.AsType[*fileError](err); ok || errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		path = found
	}
	f, err := openPath(path)
	if err == nil && len(f.tensors) == 0 && !f.architecture.MakesImages() {
		return nil, nil // a text encoder: it counts as it is stored
	}
	return f, err
}
