package checkpoint

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
)

// latentScale is how many pixels along a side become one of the latent image, in the autoencoders of
// Stable Diffusion and FLUX.
const latentScale = 8

// Images returns the model for images of side x side pixels in place of the usual size, which its
// config.json tells. It is an error of models whose weights are of one size alone, such as ViT's
// positions, of those that see no images, and of a side that does not divide into patches.
func (c *File) Images(side int) (*File, error) {
	if _, err := c.Architecture(); err != nil {
		return nil, err
	}
	sized := *c
	if err := sized.architecture.resize(side); err != nil {
		return nil, fmt.Errorf("checkpoint: images of %d x %d: %w", side, side, err)
	}
	return &sized, nil
}

// resize sets the images that the model reads or makes.
func (a *architecture) resize(side int) error {
	if side < 1 || side > largestNumber {
		return fmt.Errorf("want a side of 1 to %d pixels", largestNumber)
	}
	switch m := a.image.(type) {
	case resNet:
		m.side = side
		a.image = m
		return nil
	case pipeline:
		err := m.runs.resize(side)
		a.image = m
		return err
	case nil:
		if a.Denoiser == nil {
			return fmt.Errorf("a %s model reads those of one size, or none", a.family)
		}
	}
	if side%latentScale != 0 {
		return fmt.Errorf("want a multiple of %d pixels", latentScale)
	}
	side /= latentScale
	switch m := a.image.(type) {
	case unet:
		if unit := 1 << (len(m.Levels) - 1); side%unit != 0 { // each level but the last halves
			return fmt.Errorf("want a multiple of %d pixels", unit*latentScale)
		}
		m.side = side
		a.image = m
	case autoencoder:
		m.side = side * latentScale >> (len(m.Channels) - 1)
		a.image = m
	case nil:
		return a.resizeLatent(side)
	}
	return nil
}

// resizeLatent sets the latent image that a transformer makes, of which each patch is a place.
func (a *architecture) resizeLatent(side int) error {
	patch := 2 // of FLUX, whose latent images come in patches
	if a.Image > 0 {
		patch = a.Patch
	}
	switch {
	case side%patch != 0:
		return fmt.Errorf("want a multiple of %d pixels", patch*latentScale)
	case a.Family == family.SD3 && (side/patch)*(side/patch) > a.Positions:
		return fmt.Errorf("the model has %d positions, fewer than their patches", a.Positions)
	case a.Image > 0:
		a.Image = side
	default:
		a.latent = side
	}
	return nil
}
