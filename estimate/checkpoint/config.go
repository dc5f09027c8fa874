package checkpoint

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
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
	c := &hfConfig{file: file}
	if err := decodeJSON(io.NewSectionReader(r, 0, size), c); err != nil {
		return nil, &Error{File: file, Reason: "it is not the JSON of a " + configName, Err: err}
	}
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
		return c.cacheAlone(), &Error{File: c.file, Where: "model_type",
			Reason: fmt.Sprintf("%q is none of the families that are known, %s", shorten(c.ModelType), hfFamilyNames()), Err: ErrUnknownArchitecture}
	}
	c.base = family.base
	a := architecture{family: c.ModelType, dtype: c.dtype(), quantized: c.Quantization}
	if c.Text != nil && a.dtype == 0 {
		a.dtype = c.Text.dtype()
	}
	if err := family.read(c, &a); err != nil {
		return architecture{}, err
	}
	if err := a.check(); err != nil {
		return architecture{}, &Error{File: c.file, Err: err}
	}
	return a, nil
}

func hfFamilyNames() string { return strings.Join(slices.Sorted(maps.Keys(hfFamilies)), ", ") }

// hfFamilies has the families by model_type. The functions follow the modules of
// Hugging Face's transformers (src/transformers/models/*/modeling_*.py) and take the
// values of keys that are absent from configuration_*.py there.
var hfFamilies = map[string]struct {
	base string // the class without a head, meant where there are no architectures
	read func(*hfConfig, *architecture) error
}{
	"llama":       {"LlamaModel", hfLlama},
	"mistral":     {"MistralModel", hfMistral},
	"mixtral":     {"MixtralModel", hfMixtral},
	"qwen2":       {"Qwen2Model", hfQwen2},
	"qwen3":       {"Qwen3Model", hfQwen3},
	"qwen3_moe":   {"Qwen3MoeModel", hfQwen3MoE},
	"olmo2":       {"Olmo2Model", hfOLMo2},
	"gemma":       {"GemmaModel", hfGemma},
	"gemma2":      {"Gemma2Model", hfGemma2},
	"gemma3_text": {"Gemma3TextModel", hfGemma3},
	"gemma3":      {"Gemma3Model", hfGemma3Vision},
	"gpt_oss":     {"GptOssModel", hfGPTOSS},
	"deepseek_v3": {"DeepseekV3Model", hfDeepSeekV3},
	"phi":         {"PhiModel", hfPhi},
	"phi3":        {"Phi3Model", hfPhi3},
	"gpt2":        {"GPT2Model", hfGPT2},
	"bert":        {"BertModel", hfBERT},
	"vit":         {"ViTModel", hfViT},
}
