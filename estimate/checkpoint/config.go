package checkpoint

import (
	"bytes"
	"cmp"
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

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/families"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/diffusion"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/quantconfig"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/strictjson"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

const configName = "config.json"

const maxConfigFile = 16 << 20

// architecture is what a config.json or the metadata of a GGUF file say about a model.
type architecture struct {
	family.Model
	cache     bool                // the model is of an unknown family and says only what its cache takes
	dtype     alloc.DType         // type of the weights, if a config.json has it
	quantized *quantconfig.Config // quantization of the weights, if a config.json has it
}

// config is a config.json, with the keys that have the same meaning in all families.
type config struct {
	ModelType    string            `json:"model_type"`
	ClassName    string            `json:"_class_name"` // diffusers writes this instead
	DType        string            `json:"dtype"`
	TorchDType   string            `json:"torch_dtype"` // its name up to transformers 4
	Text         json.RawMessage   `json:"text_config"` // settings of the text part, in a model for images and text
	Quantization json.RawMessage   `json:"quantization_config"`
	WeightMap    map[string]string `json:"weight_map"` // only in an index, which is not a config

	file string
	text json.RawMessage
}

// openConfig reads the architecture from a config.json.
func openConfig(path string) (architecture, error) {
	c, err := readHeader(path, readConfig)
	if err != nil {
		return architecture{}, err
	}
	if len(c.Quantization) == 0 {
		if c.Quantization, err = readModelOpt(filepath.Join(filepath.Dir(path), modelOptName)); err != nil {
			return architecture{}, err
		}
	}
	a, err := c.architecture()
	if err == nil && a.dtype == 0 && a.quantized == nil {
		a.Assumed = append(a.Assumed, c.assumedType())
	}
	return a, err
}

// modelOptName is the file in which ModelOpt says how the weights are quantized, where config.json does not.
const modelOptName = "hf_quant_config.json"

// readModelOpt returns the text of that file, or nil if there is none.
func readModelOpt(path string) (json.RawMessage, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, nil //nolint:nilerr // most models have none
	}
	return readHeader(path, func(r io.ReaderAt, size int64, file string) (json.RawMessage, error) {
		if size > maxConfigFile {
			return nil, inFile(file, "it has %d bytes; a %s has at most %d", size, modelOptName, maxConfigFile)
		}
		text, err := strictjson.Read(io.NewSectionReader(r, 0, size))
		if err != nil {
			return nil, &fileError{file: file, reason: "it is not the JSON of a " + modelOptName, err: err}
		}
		return text, nil
	})
}

// assumedType says in what type the weights are counted if config.json gives none that is known.
func (c *config) assumedType() string {
	given := "no dtype"
	if name := cmp.Or(c.DType, c.TorchDType); name != "" {
		given = fmt.Sprintf("a dtype that is not known, %q", strictjson.Shorten(name))
	}
	return fmt.Sprintf("config.json gives %s: the weights are float32 unless Precision gives another type", given)
}

// readConfig decodes a config.json.
func readConfig(r io.ReaderAt, size int64, file string) (*config, error) {
	if size > maxConfigFile {
		return nil, inFile(file, "it has %d bytes; a %s has at most %d", size, configName, maxConfigFile)
	}
	text, err := io.ReadAll(io.NewSectionReader(r, 0, size))
	if err == nil {
		text, err = strictjson.Read(bytes.NewReader(strictjson.FromPython(text)))
	}
	c := &config{file: file, text: text}
	if err == nil {
		err = strictjson.Unmarshal(text, c)
	}
	switch {
	case err != nil:
		return nil, &fileError{file: file, reason: "it is not the JSON of a " + configName, err: err}
	case c.WeightMap != nil:
		return nil, inFile(file, "it is an index of shards, but not named as one of safetensors (*%s)", indexSuffix)
	case c.ModelType == "" && c.ClassName == "":
		return nil, inFile(file, "it has no model_type: no %s of a transformer", configName)
	}
	return c, nil
}

// architecture looks the model up among the families that are known.
func (c *config) architecture() (architecture, error) {
	name := cmp.Or(c.ModelType, c.ClassName)
	m, err := families.Table().ReadConfig(name, c.text)
	quantized, wrongly := c.quantization()
	a := architecture{Model: m, dtype: c.dtype(), quantized: quantized}
	wrong := (*family.Error)(nil)
	switch {
	case wrongly != nil:
		return architecture{}, &fileError{file: c.file, where: "quantization_config", reason: "it is no quantization that could be read", err: wrongly}
	case errors.As(err, &wrong):
		return architecture{}, settingsError(c.file, wrong)
	case err == nil:
		return a, nil
	}
	key := "model_type"
	if c.ModelType == "" {
		key = "_class_name"
	}
	reason := fmt.Sprintf("%q is none of the %d families that are known, which `gpumemtrack help estimate-models` lists", strictjson.Shorten(name), len(Families()))
	alone, err := c.cacheAlone(name)
	if errors.As(err, &wrong) {
		reason += fmt.Sprintf("; nor are the sizes of its keys and values known: %s: %s", wrong.Where, cmp.Or(wrong.Reason, "it is wrong"))
	}
	return alone, &fileError{file: c.file, where: key, reason: reason, err: ErrUnknownArchitecture}
}

// quantization reads how the weights are packed. That it is null, as some writers leave it, means that they are not.
func (c *config) quantization() (*quantconfig.Config, error) {
	if len(c.Quantization) == 0 || string(c.Quantization) == "null" {
		return nil, nil
	}
	return quantconfig.Read(c.Quantization)
}

// cacheAlone returns what the settings of an unknown family say about its keys and values, if that
// is enough for the cache.
func (c *config) cacheAlone(name string) (architecture, error) {
	m, err := family.CacheAlone(families.Table(), name, c.text)
	if err != nil {
		return architecture{}, err
	}
	return architecture{Model: m, cache: true}, nil
}

// dtype is the type of the weights, and zero if it is not given or not known.
func (c *config) dtype() alloc.DType {
	var text config
	if c.Text != nil {
		_ = json.Unmarshal(c.Text, &text) // what is wrong there, the family says
	}
	for _, name := range []string{cmp.Or(c.DType, c.TorchDType), cmp.Or(text.DType, text.TorchDType)} {
		if d, err := alloc.ParseDType(name); err == nil {
			return d
		}
	}
	return 0
}

// settingsError turns an error in a model's settings into an error of the file.
func settingsError(file string, wrong *family.Error) error {
	return &fileError{file: file, where: wrong.Where, reason: wrong.Reason, err: wrong.Err}
}

// Families returns the known families of a config.json, sorted: values of model_type, or of
// _class_name in files of diffusers.
func Families() []string { return families.Table().Types() }

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
	unread  setting.Unread
	float32 setting.Float32Parts
}

// joinUnread adds what was not read of a part.
func joinUnread(u, part setting.Unread, name string) setting.Unread {
	for _, key := range part.Keys {
		u.Keys = append(u.Keys, name+"."+key)
	}
	for _, key := range part.Foreign {
		u.Foreign = append(u.Foreign, name+"."+key)
	}
	of := u.Part(name)
	of.Add(part.Growth)
	for _, p := range part.Parts {
		of.Add(p.Growth)
	}
	return u
}

// part is a model of a pipeline.
type part struct {
	name    string
	tensors []tensorInfo
	known   *family.Model // counts in place of the tensors: a model of images, or one without tensors
}

// whole is the pipeline as its family has it.
func (p pipeline) whole() diffusion.Pipeline {
	w := diffusion.Pipeline{Name: p.name, Runs: p.runs.Model}
	for _, o := range p.others {
		w.Held = append(w.Held, diffusion.Held{Name: o.name, Stored: o.params(), Known: o.known})
	}
	return w
}

// Layers returns the layers of all parts, with the part that runs last.
func (p pipeline) Layers() []tape.Layer { return p.whole().Layers() }

// Inputs returns the inputs of the part that runs.
func (p pipeline) Inputs(batch, length int) []family.Input { return p.runs.Inputs(batch, length) }

// Resized is the pipeline that makes images of another side.
func (p pipeline) Resized(side int) (family.Images, error) {
	whole, err := p.whole().Resized(side)
	return p.running(whole), err
}

// Referring is the pipeline that makes images of others.
func (p pipeline) Referring(images int) (family.Images, error) {
	whole, err := p.whole().Referring(images)
	return p.running(whole), err
}

// Filmed is the pipeline that makes videos of another length.
func (p pipeline) Filmed(frames int) (family.Images, error) {
	whole, err := p.whole().Filmed(frames)
	return p.running(whole), err
}

// Video is the number of frames of the videos that the pipeline makes, and the side of each in pixels.
func (p pipeline) Video() (frames, side int) { return p.whole().Video() }

// running is the pipeline where what runs is that of the whole.
func (p pipeline) running(whole family.Images) pipeline {
	p.runs.Model = whole.(diffusion.Pipeline).Runs
	return p
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

// Running is the name of the part that runs.
func (p pipeline) Running() string { return p.name }

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
			p.missing = append(p.missing, fmt.Sprintf("%s (%s)", name, strictjson.Shorten(classes[name])))
			continue
		}
		p.unread = joinUnread(p.unread, f.architecture.Unread, name)
		p.float32.Add(name, f.architecture.Float32)
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
		other := part{name: name, tensors: f.tensors}
		if f.architectureErr == nil && (f.architecture.Images != nil || len(f.tensors) == 0) {
			other.known = &f.architecture.Model
		}
		p.others = append(p.others, other)
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
	c.architecture = architecture{Model: family.Model{Type: p.runs.Type, Images: p, Unread: p.unread, Float32: p.float32}, dtype: p.runs.dtype, quantized: p.runs.quantized}
	return c, nil
}

// readPipeline returns the class of each part that has weights, by name.
func readPipeline(r io.ReaderAt, size int64, file string) (map[string]string, error) {
	if size > maxConfigFile {
		return nil, inFile(file, "it has %d bytes; a %s has at most %d", size, pipelineName, maxConfigFile)
	}
	text, err := strictjson.Read(io.NewSectionReader(r, 0, size))
	var members map[string]json.RawMessage
	if err == nil {
		err = strictjson.Unmarshal(text, &members)
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
			return nil, inFile(file, "part %q is not the name of a folder beside it", strictjson.Shorten(name))
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
	if err == nil && len(f.tensors) == 0 && f.architectureErr != nil {
		return nil, nil //nolint:nilerr // only the keys and values of a text encoder are known
	}
	return f, err
}
