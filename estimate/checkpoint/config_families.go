package checkpoint

// hfFamilies has the families by model_type, and by _class_name those of diffusers. The functions follow the modules of
// Hugging Face's transformers (src/transformers/models/*/modeling_*.py); what a config.json
// leaves out has the defaults of configuration_*.py there (defaults.json).
var hfFamilies = map[string]hfFamily{
	"llama":        {base: "LlamaModel", read: hfLlama},
	"mistral":      {base: "MistralModel", read: hfMistral},
	"mixtral":      {base: "MixtralModel", read: hfMixtral},
	"qwen2":        {base: "Qwen2Model", read: hfQwen2},
	"qwen2_moe":    {base: "Qwen2MoeModel", read: hfQwen2MoE},
	"qwen3":        {base: "Qwen3Model", read: hfQwen3},
	"qwen3_moe":    {base: "Qwen3MoeModel", read: hfQwen3MoE},
	"olmo":         {base: "OlmoModel", read: hfOLMo},
	"olmo2":        {base: "Olmo2Model", read: hfOLMo2},
	"olmo3":        {base: "Olmo3Model", read: hfOLMo3},
	"gemma":        {base: "GemmaModel", read: hfGemma},
	"gemma2":       {base: "Gemma2Model", read: hfGemma2},
	"gemma3_text":  {base: "Gemma3TextModel", read: hfGemma3},
	"gemma3":       {base: "Gemma3Model", read: hfGemma3Vision},
	"gemma3n":      {base: "Gemma3nModel", read: hfGemma3nWhole},
	"gemma3n_text": {base: "Gemma3nTextModel", read: hfGemma3n},
	"chatglm":      {base: "ChatGLMModel", read: hfChatGLM},
	"glm":          {base: "GlmModel", read: hfGLM},
	"glm4":         {base: "Glm4Model", read: hfGLM4},
	"granite":      {base: "GraniteModel", read: hfGranite},
	"cohere":       {base: "CohereModel", read: hfCohere},
	"cohere2":      {base: "Cohere2Model", read: hfCohere2},
	"starcoder2":   {base: "Starcoder2Model", read: hfStarcoder2},
	"stablelm":     {base: "StableLmModel", read: hfStableLM},
	"smollm3":      {base: "SmolLM3Model", read: hfSmolLM3},
	"nemotron":     {base: "NemotronModel", read: hfNemotron},
	"gpt_oss":      {base: "GptOssModel", read: hfGPTOSS},
	"deepseek_v2":  {base: "DeepseekV2Model", read: hfDeepSeekV2},
	"deepseek_v3":  {base: "DeepseekV3Model", read: hfDeepSeekV3},
	"phi":          {base: "PhiModel", read: hfPhi},
	"phi3":         {base: "Phi3Model", read: hfPhi3},
	"phimoe":       {base: "PhimoeModel", read: hfPhiMoE},
	"gpt_neox":     {base: "GPTNeoXModel", read: hfGPTNeoX},
	"falcon":       {base: "FalconModel", read: hfFalcon},
	"bloom":        {base: "BloomModel", read: hfBLOOM},
	"opt":          {base: "OPTModel", read: hfOPT},
	"gpt2":         {base: "GPT2Model", read: hfGPT2},
	"gpt_bigcode":  {base: "GPTBigCodeModel", read: hfBigCode},
	"bert":         {base: "BertModel", read: hfBERT},
	"roberta":      {base: "RobertaModel", read: hfRoBERTa},
	"xlm-roberta":  {base: "XLMRobertaModel", read: hfXLMRoBERTa},
	"distilbert":   {base: "DistilBertModel", read: hfDistilBERT},
	"mistral3":     {base: "Mistral3Model", read: hfMistral3},
	"llava":        {base: "LlavaModel", read: hfLLaVA},
	"qwen2_vl":     {base: "Qwen2VLModel", read: hfQwen2VL},
	"qwen2_5_vl":   {base: "Qwen2_5_VLModel", read: hfQwen25VL},
	"qwen3_vl":     {base: "Qwen3VLModel", read: hfQwen3VL},
	"clip":         {base: "CLIPModel", read: hfCLIP},
	"siglip":       {base: "SiglipModel", read: hfSigLIP},
	"swin":         {base: "SwinModel", read: hfSwin},
	"dinov2":       {base: "Dinov2Model", read: hfDINOv2},
	"qwen3_next":   {base: "Qwen3NextModel", read: hfQwen3Next},
	"llama4":       {base: "Llama4Model", read: hfLlama4},
	"llama4_text":  {base: "Llama4TextModel", read: hfLlama4Text},
	"mamba":        {base: "MambaModel", read: hfMamba},
	"t5":           {base: "T5Model", read: hfT5},
	"bart":         {base: "BartModel", read: hfBART},
	"whisper":      {base: "WhisperModel", read: hfWhisper},
	"vit":          {base: "ViTModel", read: hfViT},

	"FluxTransformer2DModel":   {read: hfFlux},
	"Flux2Transformer2DModel":  {read: hfFlux2},
	"PixArtTransformer2DModel": {read: hfPixArt},
	"AutoencoderKL":            {read: hfAutoencoder},
	"UNet2DConditionModel":     {read: hfUNet},
}

// hfKeys are the usual names of keys, by the names that a family has for them.
var hfKeys = map[string]map[string]string{
	"chatglm": chatGLMKeys, "falcon": falconKeys, "bloom": falconKeys,
	"bart": halvesKeys, "whisper": halvesKeys,
	"t5":         {"d_model": "hidden_size", "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "d_ff": "intermediate_size", "d_kv": "head_dim", "num_decoder_layers": "decoder_layers"},
	"distilbert": {"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads", "hidden_dim": "intermediate_size"},
}

// chatGLMKeys are those of the code beside ChatGLM's weights.
var chatGLMKeys = map[string]string{
	"num_layers": "num_hidden_layers", "padded_vocab_size": "vocab_size", "multi_query_group_num": "num_key_value_heads",
	"kv_channels": "head_dim", "ffn_hidden_size": "intermediate_size", "add_qkv_bias": "qkv_bias", "add_bias_linear": "bias",
	"multi_query_attention": "multi_query",
}

var falconKeys = map[string]string{"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_embed": "hidden_size"}

var halvesKeys = map[string]string{"d_model": "hidden_size", "encoder_layers": "num_hidden_layers", "encoder_attention_heads": "num_attention_heads", "encoder_ffn_dim": "intermediate_size"}
