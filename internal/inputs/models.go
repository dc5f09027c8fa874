package inputs

import (
	"bytes"
	"slices"
)

// Files of models.
var (
	GGUF = &Kind{
		Name: "gguf", What: "a model's file", Source: "llama.cpp", Takes: []string{"estimate"},
		is: func(h *Head) bool { return h.Begins("GGUF") },
	}
	Safetensors = &Kind{
		Name: "safetensors", What: "a model's file", Source: "safetensors", Takes: []string{"estimate"},
		is: func(h *Head) bool {
			return len(h.raw) > 9 && h.raw[8] == '{' && bytes.Equal(h.raw[4:8], make([]byte, 4))
		},
	}
	TorchSave = &Kind{
		Name: "torch-save", What: "a model's file", Source: "torch.save", Takes: []string{"estimate"},
		is: func(h *Head) bool { return h.Begins("PK\x03\x04") && h.Contains("/data.pkl") },
	}
	ModelConfig = &Kind{
		Name: "config", What: "a model's file", Source: "transformers, diffusers", Takes: []string{"estimate"},

		is: func(h *Head) bool {
			return h.members != nil && !h.list && slices.ContainsFunc([]string{"model_type", "architectures", "_class_name", "weight_map"}, func(key string) bool { return h.Contains(`"` + key + `"`) })
		},
	}
)

var models = []*Kind{GGUF, Safetensors, TorchSave, ModelConfig}
