package family

import (
	"encoding/json"
	"fmt"
	"strings"
)

// ReadConfig returns the model that a config.json describes; name is its model_type or _class_name.
// If no family has that name the error is ErrUnknown, otherwise an *Error.
func (t *Table) ReadConfig(name string, text json.RawMessage) (Model, error) {
	a := Model{Type: name}
	known, ok := t.types[name]
	if !ok || known.Part {
		return a, ErrUnknown
	}
	c := newConfig(t, known, text, new(error))
	for _, size := range []string{"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"} {
		delete(c.defaults, usualName(c.names, size)) // a whole model must give its sizes, a part need not
	}
	a.Family = known.Family
	classes := c.Names("architectures")
	if len(classes) > 0 {
		a.class = classes[0]
	} else if known.Base != "" {
		a.Assumed = append(a.Assumed, fmt.Sprintf("config.json names no architectures: this is %s, with neither a head nor a loss", known.Base))
	}
	a.problem = c.Word("problem_type")
	c.reading = &reading{types: []string{name}}
	c.object = c.reading.at("", c.class, c.members())
	known.Read(c, &a)
	a.Float32 = inFloat32(c.reading.types)
	a.Longest = c.longest()
	c.Check("", &a)
	c.noteUnread(&a)
	if *c.err != nil {
		return Model{}, *c.err
	}
	if len(classes) == 0 && known.Base != "" {
		if class := c.exampleClass(name, text); class != "" {
			a.Assumed[0] += fmt.Sprintf("; add the class that is meant, such as \"architectures\": [%q]", class)
		}
	}
	return a, nil
}

// contextKeys are the names of the longest text that a model was made for, in the order in which they count; contextParts are
// the parts of a config.json that may have it instead.
var (
	contextKeys  = []string{"max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "context_length", "n_ctx"}
	contextParts = []string{"text_config", "llm_config", "language_config", "thinker_config"}
)

// longest returns the longest text that the model was made for; 0 means that the file does not say.
func (c *Config) longest() int {
	for _, key := range contextKeys {
		var n Whole
		if v := c.Value(key); v != nil && json.Unmarshal(v, &n) == nil && n > 0 {
			return int(n)
		}
	}
	for _, part := range contextParts {
		if _, usual := c.class.Parts[part]; usual || c.Given(part) {
			return c.Component(part, "").longest()
		}
	}
	return 0
}

// ReadConfig returns the model that another config.json describes, such as that of a part of a pipeline; see
// Table.ReadConfig.
func (c *Config) ReadConfig(name string, text json.RawMessage) (Model, error) {
	return c.table.ReadConfig(name, text)
}

// noteUnread sets the Unread keys of the model, unless there was an error before. It is an error if one of them changes
// single layers.
func (c *Config) noteUnread(a *Model) {
	if *c.err != nil {
		return
	}
	var shaping string
	if a.Unread, shaping = c.reading.unread(); shaping != "" {
		*c.err = &Error{Where: shaping, Err: ErrUnknown, Reason: "it changes single layers, which this program does not know of this model: with the weights beside the file, their size is counted"}
	}
}

// exampleClass returns the name of a class with a head that the config can name; "" if none of the usual names is one. The text
// parts of models of images and text have mostly none.
func (c *Config) exampleClass(name string, text json.RawMessage) string {
	if strings.HasSuffix(name, "_text") {
		return ""
	}
	usual := "ForCausalLM"
	switch {
	case c.Family.OrLlama().Images:
		usual = "ForImageClassification"
	case c.Family.OrLlama().Layers != nil && c.Family.Encoder():
		usual = "ForSequenceClassification"
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(text, &members) != nil {
		return ""
	}
	for _, end := range []string{usual, "ForConditionalGeneration", "ForCausalLM", "ForImageClassification", "ForSequenceClassification"} {
		class := c.Named(end)
		members["architectures"] = json.RawMessage(fmt.Sprintf("[%q]", class))
		headed, err := json.Marshal(members)
		if err != nil {
			return ""
		}
		if _, err := c.table.ReadConfig(name, headed); err == nil {
			return class
		}
	}
	return ""
}
