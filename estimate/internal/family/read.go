package family

import (
	"encoding/json"
	"fmt"
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
	if classes := c.Names("architectures"); len(classes) > 0 {
		a.class = classes[0]
	} else if known.Base != "" {
		a.Assumed = append(a.Assumed, fmt.Sprintf("config.json names no architectures: this is %s, with neither a head nor a loss; add the class that is meant, such as \"architectures\": [\"%s\"]", known.Base, c.exampleClass()))
	}
	a.problem = c.Word("problem_type")
	c.reading = &reading{types: []string{name}}
	c.object = c.reading.at("", c.class, c.members())
	known.Read(c, &a)
	a.Float32 = inFloat32(c.reading.types)
	c.Check("", &a)
	c.noteUnread(&a)
	if *c.err != nil {
		return Model{}, *c.err
	}
	return a, nil
}

// ReadConfig returns the model that another config.json describes, such as that of a part of a pipeline; see
// Table.ReadConfig.
func (c *Config) ReadConfig(name string, text json.RawMessage) (Model, error) {
	return c.table.ReadConfig(name, text)
}

// noteUnread gives the model the keys that no reader looked at, unless there was an error before. A key that changes
// single layers is one.
func (c *Config) noteUnread(a *Model) {
	if *c.err != nil {
		return
	}
	var shaping string
	if a.Unread, shaping = c.reading.unread(); shaping != "" {
		*c.err = &Error{Where: shaping, Err: ErrUnknown, Reason: "it changes single layers, which this program does not know of this model: with the weights beside the file, their size is counted"}
	}
}

// exampleClass returns the name of a class with a head.
func (c *Config) exampleClass() string {
	switch {
	case c.Family.Seq2Seq():
		return c.Named("ForConditionalGeneration")
	case c.Family.OrLlama().Images || c.Family.OrLlama().Layers == nil && c.Family.Encoder():
		return c.Named("ForImageClassification")
	case c.Family.Encoder():
		return c.Named("ForSequenceClassification")
	}
	return c.Named("ForCausalLM")
}
