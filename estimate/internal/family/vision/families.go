package vision

import "github.com/gpumemtrack/gpumemtrack/estimate/internal/family"

// Families are those of this package.
var Families = []*family.Family{
	ViT, DeiT, IJEPA, BEiT, DINOv2, Swin, SwinV2, convNeXtFamily, resNetFamily, CLIP, CLIPText, SigLIP, SigLIP2, BLIP2, LLaVA,
	Mistral3, PaliGemma, LLaVANext, LLaVAOneVision, Idefics3, InternVL,
	Qwen2Vision, Qwen25Vision, Qwen3Vision, Gemma3Vision, Gemma3nVision, gemma3nSounds, Gemma4Vision, gemma4Sounds,
	Llama4Vision, MLlamaVision, GLM4Vision, Phi4Vision,
}
