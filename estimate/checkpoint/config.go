package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/families"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/jsontext"
)

const configName = "config.json"

const maxConfigFile = 16 << 20

// architecture is what a config.json or the metadata of a GGUF file say about a model.
type architecture struct {
	family.Model
	cache     bool          // the model is of an unknown family and tells its cache alone
	dtype     alloc.DType   // type of the weights, if a config.json tells it
	quantized *quantization // quantization of the weights, if a config.json tells it
}

// config is a config.json, with the keys that have the same meaning in all families.
type config struct {
	ModelType    string            `json:"model_type"`
	ClassName    string            `json:"_class_name"` // diffusers writes this instead
	DType        string            `json:"dtype"`
	TorchDType   string            `json:"torch_dtype"` // its name up to transformers 4
	Text         json.RawMessage   `json:"text_config"` // settings of the text part, in a model for images and text
	Quantization *quantization     `json:"quantization_config"`
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
	return c.architecture()
}

// readConfig decodes a config.json.
func readConfig(r io.ReaderAt, size int64, file string) (*config, error) {
	if size > maxConfigFile {
		return nil, inFile(file, "it has %d bytes; a %s has at most %d", size, configName, maxConfigFile)
	}
	text, err := io.ReadAll(io.NewSectionReader(r, 0, size))
	if err == nil {
		text, err = jsontext.Read(bytes.NewReader(jsontext.FromPython(text)))
	}
	c := &config{file: file, text: text}
	if err == nil {
		err = jsontext.Unmarshal(text, c)
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
	a := architecture{Model: m, dtype: c.dtype(), quantized: c.Quantization}
	switch wrong := (*family.Error)(nil); {
	case errors.As(err, &wrong):
		return architecture{}, settingsError(c.file, wrong)
	case err == nil:
		return a, nil
	}
	key := "model_type"
	if c.ModelType == "" {
		key = "_class_name"
	}
	reason := fmt.Sprintf("%q is none of the %d families that are known, which `gpumemtrack help estimate-models` and checkpoint.Families list", jsontext.Shorten(name), len(Families()))
	alone, ok := c.cacheAlone(name)
	if !ok {
		reason += "; nor does it tell its keys and values, as hidden_size, num_hidden_layers and num_attention_heads would"
	}
	return alone, &fileError{file: c.file, where: key, reason: reason, err: ErrUnknownArchitecture}
}

// cacheAlone returns what the settings of an unknown family say about its keys and values, if that
// is enough for the cache.
func (c *config) cacheAlone(name string) (architecture, bool) {
	m, ok := families.Table().CacheAlone(name, c.text)
	if !ok {
		return architecture{}, false
	}
	return architecture{Model: m, cache: true}, true
}

// dtype is the type of the weights, and zero if it is not told or not known.
func (c *config) dtype() alloc.DType {
	var text config
	if c.Text != nil {
		json.Unmarshal(c.Text, &text) // what is wrong there, the family says
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
