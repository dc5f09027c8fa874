package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// towerLayer is a tower as a layer: what declares its parts and those that fit its output to the width of the text. Its
// parameters are there, and it does not run.
type towerLayer struct {
	declare func(c Transformer, width int, d *tape.Declaration)
	c       Transformer
	width   int
}

// towerOf is the tower that declare declares.
func towerOf(declare func(c Transformer, width int, d *tape.Declaration)) func(Transformer, int) []tape.Layer {
	return func(c Transformer, width int) []tape.Layer {
		c.Channels, c.Patch = setting.Or(c.Channels, 3), setting.Or(c.Patch, 16)
		return []tape.Layer{tape.Named{Name: "visual", Layer: held{towerLayer{declare, c, width}}}}
	}
}

func (l towerLayer) Declare(d *tape.Declaration) {
	if d.WantAll(tape.Setting{Name: "Vision.Hidden", Value: l.c.Hidden, Least: 1}, tape.Setting{Name: "Vision.Blocks", Value: l.c.Blocks, Least: 0}, tape.Setting{Name: "Vision.Heads", Value: l.c.Heads, Least: 1}, tape.Setting{Name: "Vision.FFN", Value: l.c.FFN, Least: 1},
		tape.Setting{Name: "Vision.Patch", Value: l.c.Patch, Least: 1}, tape.Setting{Name: "Vision.Channels", Value: l.c.Channels, Least: 1}, tape.Setting{Name: "Vision.Merge", Value: l.c.Merge, Least: 0}) {
		l.declare(l.c, l.width, d)
	}
}

func (towerLayer) Forward(t *tape.Tape, _ tape.Tensor) (tape.Tensor, error) {
	return tape.Tensor{}, t.Errorf("a vision tower does not run")
}

// side is the number of patches along an image's side.
func (c Transformer) side() int { return setting.Or(c.Image, 224) / max(1, c.Patch) }

// merged is the width of so many patches together.
func (c Transformer) merged() int {
	n := setting.Or(c.Merge, 2)
	return int(min(setting.FLOPs(c.Hidden, n, n), setting.MaxField))
}

func (c Transformer) patchConv(noBias bool) tape.Layer {
	return layer.Conv2d{In: c.Channels, Out: c.Hidden, Kernel: c.Patch, Stride: c.Patch, NoBias: noBias}
}

// imageText is a model of images and text: how each part's settings are read.
type imageText struct {
	head   string // the class with a head
	text   string // the type of the text, where it does not say it or cannot
	vision string // that of the tower
	tower  func(vision, whole *Config, tower *Transformer)
}

// read reads both parts. The family of the whole is its tower's, and the text brings its own.
func (m imageText) read(c *Config, a *Model) {
	class := c.class(m.head)
	if !c.has("vision_config") {
		c.fail("vision_config", "the key is missing")
	}
	settings := c.value("text_config")
	if settings == nil { // older files have the text's settings among the whole's
		settings = c.raw
	}
	text := c.of(settings, m.text)
	if !text.Text {
		c.unknown("text_config", "model_type "+text.Name)
		return
	}
	if c.has("tie_word_embeddings") {
		text.inherit("tie_word_embeddings", c)
	}
	tower := Model{Transformer: Transformer{Family: c.family}}
	a.Family = text.family
	text.Read(text, a)
	a.NoHead = class == c.Base
	m.tower(c.component("vision_config", m.vision), c, &tower.Transformer)
	c.vision(a, &tower)
}

// vision sets the tower, once its numbers are found good.
func (c *Config) vision(a, tower *Model) {
	c.check("vision_config", tower)
	a.Vision = &tower.Transformer
}

// tower reads the numbers that most towers have.
func (c *Config) tower(t *Transformer) {
	c.number(&t.Hidden, "hidden_size", 0)
	c.number(&t.Blocks, "num_hidden_layers", 0)
	c.number(&t.Heads, "num_attention_heads", 0)
	c.number(&t.FFN, "intermediate_size", 0)
	c.number(&t.Image, "image_size", 224)
	c.number(&t.Patch, "patch_size", 16)
	c.number(&t.Channels, "num_channels", 3)
}
