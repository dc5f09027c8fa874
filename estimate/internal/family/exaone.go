package family

import (
	"encoding/json"
	"strings"
)

// EXAONE is Llama with other names of keys (EXAONE 3). Since transformers 5 Llama's classes run it.
// Older files name the classes of the code beside the weights, modeling_exaone.py, whose layers are the
// same.
var EXAONE = &Family{
	Name:  "EXAONE 3",
	Types: []Type{{Name: "exaone", Base: "LlamaModel", Read: readEXAONE}},
}

func readEXAONE(c *Config, a *Model) {
	if class := c.Value("architectures"); class != nil {
		c.file["architectures"] = json.RawMessage(strings.Replace(string(class), `"Exaone`, `"Llama`, 1))
	}
	readLlama(c, a)
}
