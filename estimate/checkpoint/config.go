package checkpoint

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
)

const configName = "config.json"

const maxConfigFile = 16 << 20

// openConfig reads the architecture from a config.json.
func openConfig(path string) (architecture, error) {
	c, err := readHeader(path, readConfig)
	if err != nil {
		return architecture{}, err
	}
	return c.architecture()
}

// readConfig decodes a config.json.
func readConfig(r io.ReaderAt, size int64, file string) (*hfConfig, error) {
	if size > maxConfigFile {
		return nil, inFile(file, "it has %d bytes; a %s has at most %d", size, configName, maxConfigFile)
	}
	text, err := readJSONValue(io.NewSectionReader(r, 0, size))
	if err != nil {
		return nil, &Error{File: file, Reason: "it is not the JSON of a " + configName, Err: err}
	}
	c, err := decodeConfig(file, text, "")
	if err != nil {
		return nil, &Error{File: file, Reason: "it is not the JSON of a " + configName, Err: err}
	}
	c.ModelType = cmp.Or(c.ModelType, c.ClassName)
	switch {
	case c.WeightMap != nil:
		return nil, inFile(file, "it is an index of shards, but not named as one of safetensors (*%s)", indexSuffix)
	case c.ModelType == "":
		return nil, inFile(file, "it has no model_type: no %s of a transformer", configName)
	}
	return c, nil
}

// architecture turns the settings into an architecture.
func (c *hfConfig) architecture() (architecture, error) {
	family, ok := hfFamilies[c.ModelType]
	if !ok {
		key := "model_type"
		if c.ModelType == c.ClassName {
			key = "_class_name"
		}
		return c.cacheAlone(), &Error{File: c.file, Where: key,
			Reason: fmt.Sprintf("%q is none of the %d families that are known, which `gpumemtrack estimate --help` and checkpoint.Families list", shorten(c.ModelType), len(hfFamilies)), Err: ErrUnknownArchitecture}
	}
	c.base = family.base
	a := architecture{family: c.ModelType, dtype: c.dtype(), quantized: c.Quantization}
	if a.dtype == 0 && c.Text != nil {
		if text, err := c.part(c.Text, ""); err == nil {
			a.dtype = text.dtype()
		}
	}
	if err := family.read(c, &a); err != nil {
		return architecture{}, err
	}
	if err := a.check(); err != nil {
		return architecture{}, &Error{File: c.file, Err: err}
	}
	return a, nil
}

// Families returns the families of a config.json that are known, as model_type has them, or _class_name in what
// diffusers writes, in order.
func Families() []string { return slices.Sorted(maps.Keys(hfFamilies)) }

// hfFamily is how the config.json of a model_type is read.
type hfFamily struct {
	base string // the class without a head, meant where there are no architectures
	read func(*hfConfig, *architecture) error
}
