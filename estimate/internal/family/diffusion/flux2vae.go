package diffusion

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
)

var flux2AutoencoderFamily = &family.Family{
	Name:  "autoencoder of FLUX.2",
	Types: []family.Type{{Name: "AutoencoderKLFlux2", Read: readFlux2Autoencoder}},
}

// readFlux2Autoencoder reads an Autoencoder whose decoder may have other widths, and which holds the statistics by which
// the pipeline norms patches of latent images (diffusers, autoencoder_kl_flux2.py).
func readFlux2Autoencoder(c *family.Config, a *family.Model) {
	m := imageAutoencoder(c)
	if c.Has("decoder_block_out_channels") {
		m.Decoder = widths(c, "decoder_block_out_channels")
	}
	m.Normed = m.Latent
	patch := []int{2, 2}
	c.Decode("patch_size", &patch)
	for _, n := range patch {
		c.Bounded(&n, "patch_size", n)
		if m.Normed > family.LargestNumber/max(1, n) {
			c.Fail("patch_size", "%d x %v channels are too many", m.Latent, patch)
			return
		}
		m.Normed *= n
	}
	a.Images = m
}
