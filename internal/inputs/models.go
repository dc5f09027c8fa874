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
		is: func(h *Head) bool {
			return h.Begins("PK\x03\x04") && h.Contains("/data.pkl") || isLegacyTorchSave(h)
		},
	}
	TorchDistributed = &Kind{
		Name: "torch-distributed", What: "a model's file", Source: "torch.distributed.checkpoint, .metadata", Takes: []string{"estimate"},
		is: isTorchDistributed,
	}
	ModelConfig = &Kind{
		Name: "config", What: "a model's file", Source: "transformers, diffusers", Takes: []string{"estimate"},

		is: func(h *Head) bool {
			return h.members != nil && !h.list && slices.ContainsFunc([]string{"model_type", "architectures", "_class_name", "weight_map"}, func(key string) bool { return h.Contains(`"` + key + `"`) })
		},
	}
)

var models = []*Kind{GGUF, Safetensors, TorchSave, TorchDistributed, ModelConfig}

// isLegacyTorchSave recognises the form that torch.save wrote before PyTorch 1.6, a pickle of its magic number.
func isLegacyTorchSave(h *Head) bool { return h.Begins("\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.") }

func isTorchDistributed(h *Head) bool {
	return h.Begins("\x80") && h.Contains("torch.distributed.checkpoint.metadata")
}
