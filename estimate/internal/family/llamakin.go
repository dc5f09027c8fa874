package family

import (
	"encoding/json"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// The families in this file run the classes of others, or differ from them in a key or two. Where transformers 5 runs the
// classes of another family, older files name those of the code beside the weights, whose layers are the same.

// EXAONE is Llama with other names of keys (EXAONE 3).
var EXAONE = &Family{
	Name:  "EXAONE 3",
	Types: []Type{{Name: "exaone", Base: "LlamaModel", Read: classesOf("Exaone", "Llama", readLlama)}},
	GGUF:  []GGUF{{Name: "exaone"}},
}

// InternLM3 is Llama with other names of keys.
var InternLM3 = &Family{
	Name:  "InternLM 3",
	Types: []Type{{Name: "internlm3", Base: "LlamaModel", Read: classesOf("InternLM3", "Llama", readLlama)}},
}

// IQuestCoder is Llama.
var IQuestCoder = &Family{
	Name:  "IQuest-Coder",
	Types: []Type{{Name: "iquestcoder", Base: "LlamaModel", Read: classesOf("IQuestCoder", "Llama", readLlama)}},
}

// Ministral is Mistral whose windows a list may take from single layers.
var Ministral = &Family{
	Name:  "Ministral",
	Types: []Type{{Name: "ministral", Base: "MinistralModel", Read: readMinistral}},
}

// CWM is Llama with a window in three of four layers.
var CWM = &Family{
	Name:  "CWM",
	Types: []Type{{Name: "cwm", Base: "CwmModel", Read: readCWM}},
}

// Youtu is Llama with the latent attention of DeepSeek V3.
var Youtu = &Family{
	Name:  "Youtu-LLM",
	Types: []Type{{Name: "youtu", Base: "YoutuModel", Read: readYoutu}},
}

// SarvamMLA is DeepSeek V3 with other names of keys.
var SarvamMLA = &Family{
	Name:  "Sarvam 105B",
	Types: []Type{{Name: "sarvam_mla", Base: "DeepseekV3Model", Read: classesOf("SarvamMLA", "DeepseekV3", readDeepSeekV3)}},
}

// SarvamMoE is GLM-4.5 whose heads rotate as a whole.
var SarvamMoE = &Family{
	Name:  "Sarvam 30B",
	style: style{attention: func(_ Transformer, a *layer.Attention) { a.Joined = true }},
	Types: []Type{{Name: "sarvam_moe", Base: "Glm4MoeModel", Read: classesOf("SarvamMoE", "Glm4Moe", readSarvamMoE)}},
}

// EXAONEMoE is EXAONE 4 with Llama's norms and a mixture like that of DeepSeek V3.
var EXAONEMoE = &Family{
	Name:  "K-EXAONE",
	Types: []Type{{Name: "exaone_moe", Base: "ExaoneMoeModel", Keys: map[string]string{"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"}, Read: readEXAONEMoE}},
	GGUF:  []GGUF{{Name: "exaone-moe", With: Transformer{Attention: Attention{QKNorm: layer.NormHeads}}, Window: 4, Read: ggufBest}},
}

// classesOf returns a reader for files whose class may have the name of the family, own, in place of that of the
// classes which run it.
func classesOf(own, run string, read func(*Config, *Model)) func(*Config, *Model) {
	return func(c *Config, a *Model) {
		if class := c.Value("architectures"); class != nil {
			c.set("architectures", json.RawMessage(strings.Replace(string(class), `"`+own, `"`+run, 1)))
		}
		read(c, a)
	}
}

func readSarvamMoE(c *Config, a *Model) { glm4MoE(c, a, 1) }

func readMinistral(c *Config, a *Model) {
	c.likeLlama(a)
	c.Windows(a, 0, func(int) bool { return false })
}

func readCWM(c *Config, a *Model) {
	a.MLPBias = c.Flag("mlp_bias", false)
	c.likeLlama(a)
	c.Windows(a, 8192, func(block int) bool { return block%4 == 0 })
}

func readYoutu(c *Config, a *Model) {
	c.decoder(a, 0, true)
	latent(c, a)
	c.Activation(a, c.Word("hidden_act"), "silu")
}

func readEXAONEMoE(c *Config, a *Model) {
	c.likeLlama(a)
	a.QKNorm = layer.NormHeads
	c.turnedWindows(a)
	bestOf(c, a, 1)
	c.sparseLayers(a)
}
