package estimate

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// families says of each Family how its layers are built.
var families = [...]struct {
	name   string
	layers func(Transformer) []Layer
	// encoder marks families that read all at once and keep no keys and values.
	encoder bool
}{
	Llama:      {name: "Llama", layers: Transformer.decoder},
	Gemma:      {name: "Gemma", layers: Transformer.decoder},
	Gemma2:     {name: "Gemma 2", layers: Transformer.decoder},
	OLMo2:      {name: "OLMo 2", layers: Transformer.decoder},
	GPTOSS:     {name: "gpt-oss", layers: Transformer.decoder},
	Phi:        {name: "Phi", layers: Transformer.decoder},
	Phi3:       {name: "Phi-3", layers: Transformer.decoder},
	GLM:        {name: "GLM", layers: Transformer.decoder},
	GLM4:       {name: "GLM-4", layers: Transformer.decoder},
	Granite:    {name: "Granite", layers: Transformer.decoder},
	Cohere:     {name: "Cohere", layers: Transformer.decoder},
	Starcoder2: {name: "StarCoder2", layers: Transformer.decoder},
	StableLM:   {name: "StableLM", layers: Transformer.decoder},
	OLMo:       {name: "OLMo", layers: Transformer.decoder},
	Nemotron:   {name: "Nemotron", layers: Transformer.decoder},
	PhiMoE:     {name: "Phi MoE", layers: Transformer.decoder},
	GPTNeoX:    {name: "GPT-NeoX", layers: Transformer.decoder},
	Falcon:     {name: "Falcon", layers: Transformer.decoder},
	Bloom:      {name: "BLOOM", layers: Transformer.decoder},
	OPT:        {name: "OPT", layers: Transformer.decoder},
	GPT2:       {name: "GPT-2", layers: Transformer.gpt2},
	BERT:       {name: "BERT", layers: Transformer.bert, encoder: true},
	RoBERTa:    {name: "RoBERTa", layers: Transformer.bert, encoder: true},
	DistilBERT: {name: "DistilBERT", layers: Transformer.distilBERT, encoder: true},
	ViT:        {name: "ViT", layers: Transformer.vit, encoder: true},
}

// String is the name that people know the family by.
func (f Family) String() string {
	if int(f) >= len(families) {
		return fmt.Sprintf("Family(%d)", uint8(f))
	}
	return families[f].name
}

// Encoder reports whether the family reads all at once, so that it keeps no keys and
// values of earlier tokens.
func (f Family) Encoder() bool { return int(f) < len(families) && families[f].encoder }

// Layers returns the model's layers. What is wrong with the numbers, Model
// reports.
func (c Transformer) Layers() []Layer {
	if int(c.Family) >= len(families) {
		return []Layer{wrong(fmt.Sprintf("Family is %d: want one of the constants, from Llama to ViT", c.Family))}
	}
	c.FFN = or(c.FFN, 4*min(c.Hidden, maxField))
	layers := families[c.Family].layers(c)
	if c.Vision != nil {
		layers = append(c.Vision.siglip(c.Hidden), layers...)
	}
	return layers
}

// KVCache returns the memory of the key/value cache of so many sequences of so
// many tokens. The error says what is wrong with the numbers, or that the family is
// an Encoder and has no cache.
func (c Transformer) KVCache(batch, context int, d alloc.DType) (alloc.Bytes, error) {
	if c.Family.Encoder() {
		return 0, fmt.Errorf("estimate the key/value cache: %v reads all at once and has none", c.Family)
	}
	return KVCache(c.Cache(batch, context, d))
}
