package family

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// families says of each Family how its layers are built.
var families = [...]struct {
	name   string
	layers func(Transformer) []tape.Layer
	// encoder marks families that read all at once and keep no keys and values.
	encoder bool
	// pair marks families of an encoder and a decoder, which read two inputs.
	pair bool
}{
	Llama:         {name: "Llama", layers: Transformer.decoder},
	Gemma:         {name: "Gemma", layers: Transformer.decoder},
	Gemma2:        {name: "Gemma 2", layers: Transformer.decoder},
	OLMo2:         {name: "OLMo 2", layers: Transformer.decoder},
	GPTOSS:        {name: "gpt-oss", layers: Transformer.decoder},
	Phi:           {name: "Phi", layers: Transformer.decoder},
	Phi3:          {name: "Phi-3", layers: Transformer.decoder},
	GLM:           {name: "GLM", layers: Transformer.decoder},
	GLM4:          {name: "GLM-4", layers: Transformer.decoder},
	ChatGLM:       {name: "ChatGLM", layers: Transformer.decoder},
	GLM4MoE:       {name: "GLM-4.5", layers: Transformer.decoder},
	SeedOSS:       {name: "Seed-OSS", layers: Transformer.decoder},
	Ernie:         {name: "ERNIE 4.5", layers: Transformer.decoder},
	Ministral3:    {name: "Ministral 3", layers: Transformer.decoder},
	HunYuan:       {name: "HunYuan", layers: Transformer.decoder},
	Arcee:         {name: "Arcee", layers: Transformer.decoder},
	EXAONE4:       {name: "EXAONE 4", layers: Transformer.decoder},
	MiniMaxM2:     {name: "MiniMax M2", layers: Transformer.decoder},
	GraniteMoE:    {name: "Granite MoE", layers: Transformer.decoder},
	Granite:       {name: "Granite", layers: Transformer.decoder},
	Cohere:        {name: "Cohere", layers: Transformer.decoder},
	Starcoder2:    {name: "StarCoder2", layers: Transformer.decoder},
	StableLM:      {name: "StableLM", layers: Transformer.decoder},
	OLMo:          {name: "OLMo", layers: Transformer.decoder},
	Nemotron:      {name: "Nemotron", layers: Transformer.decoder},
	PhiMoE:        {name: "Phi MoE", layers: Transformer.decoder},
	GPTNeoX:       {name: "GPT-NeoX", layers: Transformer.decoder},
	Falcon:        {name: "Falcon", layers: Transformer.decoder},
	Bloom:         {name: "BLOOM", layers: Transformer.decoder},
	OPT:           {name: "OPT", layers: Transformer.decoder},
	Llama4:        {name: "Llama 4", layers: Transformer.decoder},
	LFM2:          {name: "LFM2", layers: Transformer.decoder},
	Qwen3Next:     {name: "Qwen3-Next", layers: Transformer.decoder},
	Gemma3n:       {name: "Gemma 3n", layers: Transformer.decoder},
	Mamba:         {name: "Mamba", layers: Transformer.mamba},
	GPT2:          {name: "GPT-2", layers: Transformer.gpt2},
	BERT:          {name: "BERT", layers: Transformer.bert, encoder: true},
	T5:            {name: "T5", layers: Transformer.t5, pair: true},
	BART:          {name: "BART", layers: Transformer.bart, pair: true},
	MBART:         {name: "mBART", layers: Transformer.bart, pair: true},
	Pegasus:       {name: "Pegasus", layers: Transformer.bart, pair: true},
	Marian:        {name: "Marian", layers: Transformer.bart, pair: true},
	ALBERT:        {name: "ALBERT", layers: Transformer.albert, encoder: true},
	ELECTRA:       {name: "ELECTRA", layers: Transformer.electra, encoder: true},
	Whisper:       {name: "Whisper", layers: Transformer.whisper, pair: true},
	CLIP:          {name: "CLIP", layers: Transformer.clip, encoder: true},
	SigLIP:        {name: "SigLIP", layers: Transformer.siglipPair, encoder: true},
	DINOv2:        {name: "DINOv2", layers: Transformer.dino, encoder: true},
	Swin:          {name: "Swin", layers: Transformer.swin, encoder: true},
	CLIPVision:    {name: "CLIP's tower", layers: Transformer.alone, encoder: true},
	PixtralVision: {name: "Pixtral", layers: Transformer.alone, encoder: true},
	Qwen2Vision:   {name: "Qwen2-VL's tower", layers: Transformer.alone, encoder: true},
	Qwen25Vision:  {name: "Qwen2.5-VL's tower", layers: Transformer.alone, encoder: true},
	Qwen3Vision:   {name: "Qwen3-VL's tower", layers: Transformer.alone, encoder: true},
	Llama4Vision:  {name: "Llama 4's tower", layers: Transformer.alone, encoder: true},
	Gemma3nVision: {name: "Gemma 3n's tower", layers: Transformer.alone, encoder: true},
	Gemma3nAudio:  {name: "Gemma 3n's tower of sounds", layers: Transformer.alone, encoder: true},
	ModernBERT:    {name: "ModernBERT", layers: Transformer.modernBERT, encoder: true},
	MPNet:         {name: "MPNet", layers: Transformer.mpNet, encoder: true},
	RoBERTa:       {name: "RoBERTa", layers: Transformer.bert, encoder: true},
	DistilBERT:    {name: "DistilBERT", layers: Transformer.distilBERT, encoder: true},
	DeiT:          {name: "DeiT", layers: Transformer.vit, encoder: true},
	ViT:           {name: "ViT", layers: Transformer.vit, encoder: true},
	Flux:          {name: "FLUX.1", layers: Transformer.flux, encoder: true},
	Flux2:         {name: "FLUX.2", layers: Transformer.flux2, encoder: true},
	QwenImage:     {name: "Qwen-Image", layers: Transformer.qwenImage, encoder: true},
	SD3:           {name: "Stable Diffusion 3", layers: Transformer.sd3, encoder: true},
	PixArt:        {name: "PixArt", layers: Transformer.pixArt, encoder: true},
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

// Seq2Seq reports whether the family has an encoder and a decoder, so that its layers read two inputs: what
// the encoder reads, and the decoder's tokens.
func (f Family) Seq2Seq() bool { return int(f) < len(families) && families[f].pair }

// Layers returns the model's layers. What is wrong with the numbers, Model
// reports.
func (c Transformer) Layers() []tape.Layer {
	if int(c.Family) >= len(families) {
		return []tape.Layer{tape.Wrong(fmt.Sprintf("Family is %d: want one of the constants, from Llama to PixArt", c.Family))}
	}
	c.FFN = setting.Or(c.FFN, 4*min(c.Hidden, setting.MaxField))
	layers := families[c.Family].layers(c)
	if c.Vision != nil && c.Family != CLIP && c.Family != SigLIP {
		layers = append(c.Vision.vision(c.Hidden), layers...)
	}
	if c.Audio != nil {
		layers = append(c.Audio.gemma3nAudio(c.Hidden), layers...)
	}
	return layers
}

// alone is a tower by itself, which is not a model.
func (c Transformer) alone() []tape.Layer {
	return []tape.Layer{tape.Wrong(fmt.Sprintf("%v is the Vision of another Transformer and no model by itself", c.Family))}
}

// KVCache returns the memory of the key/value cache of so many sequences of so
// many tokens. The error says what is wrong with the numbers, or that the family is
// an Encoder and has no cache.
func (c Transformer) KVCache(batch, context int, d alloc.DType) (alloc.Bytes, error) {
	if c.Family.Encoder() {
		return 0, fmt.Errorf("estimate the key/value cache: %v reads all at once and has none", c.Family)
	}
	return setting.KVCache(c.Cache(batch, context, d))
}
