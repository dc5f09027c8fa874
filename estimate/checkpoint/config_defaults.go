package checkpoint

import (
	_ "embed"
	"encoding/json"
	"sync"
)

// defaultsJSON has what transformers takes where a key is absent, by model_type; testdata/torch/defaults.py
// makes it.
//
//go:embed defaults.json
var defaultsJSON []byte

// hfDefaults are the settings of defaults.json.
var hfDefaults = sync.OnceValue(func() map[string]json.RawMessage {
	var defaults map[string]json.RawMessage
	if err := json.Unmarshal(defaultsJSON, &defaults); err != nil {
		panic("checkpoint: defaults.json: " + err.Error()) // it is a part of the program
	}
	return defaults
})

// decodeConfig decodes the settings of a model, or of a part of one whose model_type is that given
// where it does not say it. A model must say its sizes, a part need not.
func decodeConfig(file string, text []byte, partType string) (*hfConfig, error) {
	var named struct {
		ModelType string `json:"model_type"`
	}
	if err := unmarshal(text, &named); err != nil {
		return nil, err
	}
	modelType := named.ModelType
	if partType != "" {
		modelType = partType
	}
	c, keys := &hfConfig{}, hfKeys[modelType]
	if defaults, ok := hfDefaults()[modelType]; ok {
		if err := json.Unmarshal(renamed(defaults, keys), c); err != nil {
			return nil, err
		}
	}
	if partType == "" {
		c.HiddenSize, c.Layers, c.Heads, c.Intermediate, c.Vocabulary = nil, nil, nil, nil, nil
	}
	if err := unmarshal(renamed(text, keys), c); err != nil {
		return nil, err
	}
	c.file, c.raw = file, text
	return c, nil
}

// renamed gives the members of a JSON object their usual names.
func renamed(text []byte, keys map[string]string) []byte {
	var members map[string]json.RawMessage
	if len(keys) == 0 || json.Unmarshal(text, &members) != nil {
		return text
	}
	for own, usual := range keys {
		if value, ok := members[own]; ok {
			if _, both := members[usual]; !both {
				members[usual] = value
			}
			delete(members, own)
		}
	}
	again, err := json.Marshal(members)
	if err != nil {
		return text
	}
	return again
}

// part decodes a part of the settings, such as those of the text in a model of images and text, whose
// model_type is that given; "" takes the part's own.
func (c *hfConfig) part(text json.RawMessage, modelType string) (*hfConfig, error) {
	if modelType == "" {
		var named struct {
			ModelType string `json:"model_type"`
		}
		if err := unmarshal(text, &named); err != nil {
			return nil, &Error{File: c.file, Err: err}
		}
		modelType = named.ModelType
	}
	p, err := decodeConfig(c.file, text, modelType)
	if err != nil {
		return nil, &Error{File: c.file, Err: err}
	}
	p.ModelType = modelType
	return p, nil
}
