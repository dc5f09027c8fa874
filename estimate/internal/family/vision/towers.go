package vision

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// towerLayer declares a tower and its projection to the text's width. The parameters are counted;
// the tower does not run.
type towerLayer struct {
	declare func(c family.Transformer, width int, d *tape.Declaration)
	c       family.Transformer
	width   int
}

// towerOf returns the tower that a function declares.
func towerOf(declare func(c family.Transformer, width int, d *tape.Declaration), c family.Transformer, width int) []tape.Layer {
	c.Channels, c.Patch = setting.Or(c.Channels, 3), setting.Or(c.Patch, 16)
	return []tape.Layer{tape.As("visual", family.Held{Layer: towerLayer{declare, c, width}})}
}

func (l towerLayer) Declare(d *tape.Declaration) {
	d.Want("Vision.Hidden", l.c.Hidden, 1)
	d.Want("Vision.Blocks", l.c.Blocks, 0)
	d.Want("Vision.Heads", l.c.Heads, 1)
	d.Want("Vision.FFN", l.c.FFN, 1)
	d.Want("Vision.Patch", l.c.Patch, 1)
	d.Want("Vision.Channels", l.c.Channels, 1)
	d.Want("Vision.Merge", l.c.Merge, 0)
	l.declare(l.c, l.width, d)
}

func (towerLayer) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Failf("a vision tower does not run")
	return x
}

// merged returns the width of merged patches.
func merged(c family.Transformer) int {
	n := setting.Or(c.Merge, 2)
	return int(min(setting.FLOPs(c.Hidden, n, n), setting.MaxField))
}

// imageText says how the parts of a model of images and text are read.
type imageText struct {
	head    string // the class with a head
	text    string // the type of the text part, if the file does not or cannot say it
	vision  string // the type of the tower
	numbers func(vision, whole *family.Config, tower *family.Transformer)
}

// read reads both parts. The text part has its own family; the whole model's family is its tower's.
func (m imageText) read(c *family.Config, a *family.Model) {
	class := c.Class(m.head)
	if !c.Given("vision_config") {
		c.Fail("vision_config", "the key is missing")
	}
	text := c.Component("text_config", m.text)
	if !c.Given("text_config") { // in older files the text's settings stand among all others
		text = c.Itself(m.text)
	}
	if !text.Text {
		c.Unknown("text_config", "model_type "+text.Name)
		return
	}
	if c.Has("tie_word_embeddings") {
		text.Inherit("tie_word_embeddings", c)
	}
	tower := family.Model{Transformer: family.Transformer{Family: c.Family}}
	a.Family = text.Family
	text.Read(text, a)
	a.NoHead = class == c.Base
	m.numbers(c.Component("vision_config", m.vision), c, &tower.Transformer)
	setTower(c, a, &tower)
}

// setTower sets the tower, if its numbers make sense.
func setTower(c *family.Config, a, tower *family.Model) {
	c.Check("vision_config", tower)
	a.Vision = &tower.Transformer
}

// towerNumbers reads the numbers that most towers have.
func towerNumbers(c *family.Config, t *family.Transformer) {
	c.Sizes(t)
	c.Pixels(t, 16)
}
