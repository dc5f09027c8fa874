package diffusion

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

var pipelineFamily = &family.Family{
	Name:  "pipeline",
	Types: []family.Type{{Name: "DiffusionPipeline", Read: readPipeline}},
}

// Pipeline is a model that makes images together with what is held beside it. In a forward pass the autoencoder, if
// it is known, decodes as many latent images as the model reads, and then the model runs; its output is that of all.
type Pipeline struct {
	Name string // of the part that runs
	Runs family.Model
	Held []Held // the parts that do not run, in order
	// Upcast converts an autoencoder of float16 to float32 while it decodes, as the pipelines of SDXL do
	// (diffusers 0.42, pipeline_stable_diffusion_xl.py, upcast_vae), whose weights overflow otherwise.
	Upcast bool
}

// Held is a part of a pipeline that stays in memory while another runs.
type Held struct {
	Name   string
	Stored []tape.Param  // what is known of it
	Known  *family.Model // in place of that, where it is a model of a known family
}

// Layers returns the layers of all parts, with the part that runs last.
func (p Pipeline) Layers() []tape.Layer {
	var layers []tape.Layer
	for _, h := range p.Held {
		w := waiting{layers: tape.Sequential{tape.As("stored", &Stored{h.Stored})}}
		if h.Known != nil {
			w.layers = h.Known.Layers()
			if a, ok := h.Known.Images.(decoder); ok && h.Name == "vae" {
				w.latents, w.upcast = a.Latents(1, p.Runs.LatentSide(), p.Runs.LatentFrames()), p.Upcast
				w.tiles, _ = a.(tiled)
			}
		}
		layers = append(layers, tape.As(h.Name, w))
	}
	runs := tape.Layer(tape.Sequential(p.Runs.Layers()))
	if p.guides() {
		runs = guided{p.Runs.Layers()}
	}
	return append(layers, tape.As(p.Name, runs))
}

// guides reports whether the pipeline guides its images by a second prompt, the empty one, at once with the first: as the
// pipelines of diffusers 0.42 do whose models do not embed the strength of the guidance (do_classifier_free_guidance). Those
// of Qwen-Image and Wan run twice, one after the other.
func (p Pipeline) guides() bool {
	switch p.Runs.Type {
	case "UNet2DConditionModel":
		u, ok := p.Runs.Images.(UNet)
		return ok && u.Guided == 0
	case "SD3Transformer2DModel", "PixArtTransformer2DModel", "LTXVideoTransformer3DModel":
		return true
	}
	return false
}

// guided runs over twice the images in inference, half of them with another text (arXiv:2207.12598). Training has no guidance.
type guided struct{ tape.Sequential }

func (g guided) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if t.Cfg.Training {
		return g.Sequential.Forward(t, x)
	}
	given, shape := slices.Clone(t.Inputs), x.Shape
	for i, in := range given {
		t.Inputs[i] = t.Cat(0, in, in)
	}
	x = g.Sequential.Forward(t, t.Cat(0, x, x))
	copy(t.Inputs, given)
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape})
}

// Inputs returns the inputs of the part that runs.
func (p Pipeline) Inputs(batch, length int) []family.Input { return p.Runs.Inputs(batch, length) }

// Resized is the pipeline that makes images of another side.
func (p Pipeline) Resized(side int) (family.Images, error) {
	if scale, usual := p.pixelScale(), p.Runs.PixelScale(); scale != usual {
		if unit := setting.Product(scale, max(1, p.Runs.Patch)); side%unit != 0 {
			return p, fmt.Errorf("want a multiple of %d pixels", unit)
		}
		side = side / scale * usual // the same latent side
	}
	err := p.Runs.Resize(side)
	return p, err
}

// Referring is the pipeline that makes images of others.
func (p Pipeline) Referring(images int) (family.Images, error) {
	err := p.Runs.Refer(images)
	return p, err
}

// Filmed is the pipeline that makes videos of another length. The autoencoder decodes as many latent frames.
func (p Pipeline) Filmed(frames int) (family.Images, error) {
	err := p.Runs.Film(frames)
	return p, err
}

// Video is the number of frames of the videos that the pipeline makes, and the side of each in pixels.
func (p Pipeline) Video() (frames, side int) {
	if frames, side = p.Runs.Video(); frames > 0 {
		side = setting.Product(p.Runs.LatentSide(), p.pixelScale())
	}
	return frames, side
}

// ImageSide is the side of the images that the pipeline makes, in pixels.
func (p Pipeline) ImageSide() int { return p.Runs.ImageSide() }

// pixelScale is the number of pixels along a side that become one of the latent image: in a pipeline of videos that
// of the autoencoder, which differs between versions of Wan.
func (p Pipeline) pixelScale() int {
	if frames, _ := p.Runs.Video(); frames > 0 {
		for _, h := range p.Held {
			if h.Name == "vae" && h.Known != nil {
				if a, ok := h.Known.Images.(interface{ clip() Clip }); ok {
					return a.clip().Scale
				}
			}
		}
	}
	return p.Runs.PixelScale()
}

// Running is the name of the part that runs.
func (p Pipeline) Running() string { return p.Name }

// NotTrained are the names of the parts that are held.
func (p Pipeline) NotTrained() []string {
	var names []string
	for _, h := range p.Held {
		names = append(names, h.Name)
	}
	return names
}

// Stored is a module that is known only by its parameters.
type Stored struct{ Params []tape.Param }

func (*Stored) Kind() string { return "Stored" }

// Declare declares the parameters. Of a part that is named to be quantized, the matrices of linear layers are packed, as
// transformers does.
func (s *Stored) Declare(d *tape.Declaration) {
	q := d.Cfg.Quantized
	quantized, some := q != nil && q.Parts != nil && d.Quantizes(), false
	for _, p := range s.Params {
		if quantized && isLinear(p) {
			layer.AddQuantized(d, p)
			some = true
			continue
		}
		d.Add(p)
	}
	if quantized && !some {
		d.Failf("only the size of this part is known, not which of its weights are quantized: give the folder of the pipeline")
	}
}

// isLinear reports whether a tensor is the weight of a linear layer that transformers quantizes: not an embedding, nor one
// that it keeps in float32, as T5's last projection of an MLP.
func isLinear(p tape.Param) bool {
	at, isWeight := strings.CutSuffix(p.Name, ".weight")
	name := at[strings.LastIndexByte(at, '.')+1:]
	return isWeight && len(p.Shape) == 2 && !strings.Contains(name, "embed") && name != "shared" && name != "relative_attention_bias" && name != "wo" && name != "lm_head"
}

func (*Stored) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Failf("only its tensors are known: give no input")
	return x
}

// storedPart returns the parameters of a part of which the shape of all is known, and those of linear layers among them.
func storedPart(shape []int, linear [][]int) []tape.Param {
	if len(linear) == 0 {
		return []tape.Param{{Name: "weight", Shape: shape}}
	}
	rest := setting.FLOPs(shape...)
	var params []tape.Param
	for i, of := range linear {
		params = append(params, tape.Param{Name: fmt.Sprintf("linear.%d.weight", i), Shape: of})
		rest -= setting.FLOPs(of...)
	}
	return append(params, tape.Param{Name: "weight", Shape: alloc.Shape{int(max(0, min(rest, setting.MaxField)))}})
}

// readPipeline reads the settings of each part by its name. A part that does not run may have the shape of its parameters alone.
func readPipeline(c *family.Config, a *family.Model) {
	p := Pipeline{Upcast: c.Flag("upcast_vae", false)}
	parts := map[string]json.RawMessage{}
	c.Decode("parts", &parts)
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		var part struct {
			Class string `json:"_class_name"`
			Shape []int  // of all its parameters together
			// Linear are the weights of linear layers among them that transformers quantizes, those of the same width joined.
			Linear [][]int
		}
		err := json.Unmarshal(parts[name], &part)
		h := Held{Name: name, Stored: storedPart(part.Shape, part.Linear)}
		m := family.Model{}
		if err == nil && part.Class != "" {
			m, err = c.ReadConfig(part.Class, parts[name])
			h.Known = &m
		}
		switch {
		case err != nil:
			c.Fail("parts", "%s: %v", name, err)
		case name == "transformer" || name == "unet":
			p.Name, p.Runs = name, m
		default:
			p.Held = append(p.Held, h)
		}
	}
	if p.Name == "" {
		c.Fail("parts", "want a transformer or a unet")
	}
	a.Images = p
}
