package diffusion

import "github.com/gpumemtrack/gpumemtrack/estimate/internal/family"

// Families are those of this package.
var Families = []*family.Family{
	Flux, Flux2, SD3, PixArt, QwenImage, Wan, HunyuanVideo, LTXVideo, ZImage, uNetFamily, autoencoderFamily, pipelineFamily,
	flux2AutoencoderFamily, wanAutoencoderFamily, hunyuanAutoencoderFamily, ltxAutoencoderFamily,
}
