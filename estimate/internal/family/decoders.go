package family

// Decoders are the families of this package.
var Decoders = []*Family{
	Llama, SmolLM3, Arcee, Mistral, Ministral3, SeedOSS, Ernie, HunYuan, MiniMaxM2, Granite, GraniteMoE, Cohere, EXAONE4,
	DeepSeek, Dots1, Falcon, Bloom, Gemma, Gemma2, Gemma3n, Gemma4, GLM, GLM4, ChatGLM, GLM4MoE, GPT2, OPT, GPTJ, GPTNeo,
	MPT, GPTNeoX, GPTOSS, GraniteHybrid, Jamba, LFM2, Llama4, MLlama, Mamba, Mamba2, OLMo, OLMo2, OLMoE, Phi, Phi3, PhiMoE, Qwen,
	Qwen3Next, Starcoder2, StableLM, Nemotron,
	GLM4MoELite,
	DeepSeekV32,
	GLMMoEDSA,
	ErnieMoE,
	EXAONE,
	InternLM3,
	IQuestCoder,
	Ministral,
	CWM,
	Youtu,
	SarvamMLA,
	SarvamMoE,
	EXAONEMoE,
	Apertus,
	Bamba,
	FalconH1,
	NemotronH,
	KimiLinear,
	Zamba2,
}
