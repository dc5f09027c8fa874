package vision

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// towerLayer declares a tower and its projection to the text's width that cannot run.
type towerLayer struct {
	declare func(c family.Transformer, width int, d *tape.Declaration)
	c       family.Transformer
	width   int
}

// towerOf returns the tower that a function declares.
func towerOf(declare func(c family.Transformer, width int, d *tape.Declaration), c family.Transformer, width int) []tape.Layer {
	c.Channels, c.Patch = setting.Or(c.Channels, 3), setting.Or(c.Patch, 16)
	return []tape.Layer{tape.As("visual", towerLayer{declare, c, width})}
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
	return setting.Product(c.Hidden, n, n)
}

// unused returns a parameter that nothing reads.
func unused(name string, dims ...int) tape.Layer {
	return tape.Inline(tape.Module{Params: []tape.Param{{Name: name, Shape: dims}}, Run: func(_ *tape.Flow, x tape.Tensor) tape.Tensor { return x }})
}

// imageText says how the parts of a model of images and text are read.
type imageText struct {
	head    string // the class with a head
	text    string // the type of the text part, if the file does not or cannot say it
	usual   string // the type of the text part if the file could say it and does not
	vision  string // the type of the tower, if the file does not or cannot say it
	owns    bool   // the head is part of the text model, so that the text's own tie_word_embeddings counts
	numbers func(vision, whole *family.Config, tower *family.Model)
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
	if m.usual != "" && text.Name == "" {
		text = c.Component("text_config", m.usual)
	}
	if !text.Text {
		c.Unknown("text_config", "model_type "+text.Name)
		return
	}
	if !m.owns && c.Has("tie_word_embeddings") {
		text.Inherit("tie_word_embeddings", c)
	}
	tower := family.Model{Transformer: family.Transformer{Family: c.Family}}
	a.Family = text.Family
	text.Read(text, a)
	a.NoHead = class == c.Base
	m.numbers(c.Component("vision_config", m.vision), c, &tower)
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

// encoder is an image encoder that several families have as their tower: what transformers' AutoModel
// makes of a vision_config.
type encoder struct {
	name  string // its model_type
	class bool   // a class token stands before the patches
	read  func(c *family.Config, tower *family.Model)
	parts func(family.Transformer) tape.Sequential
	// run returns the embeddings and the output of each block, and the encoder's own output. It notes what
	// else the encoder returns.
	run func(f *tape.Flow, c family.Transformer, pixels tape.Tensor) (states []tape.Tensor, output tape.Tensor)
	// look is what the processor makes of an image, if that is not an image of the encoder's size.
	look func(family.Transformer) (family.Look, error)
}

// encoders are those that a vision_config can name.
var encoders = []encoder{clipEncoder, siglipEncoder, pixtralEncoder}

// readEncoder reads the encoder of a vision_config. usual is its type where the file does not say it.
func readEncoder(c *family.Config, t *family.Model, usual string) encoder {
	v := c.Component("vision_config", "")
	v.Harmless("projection_dim") // the encoder has no projection here
	name := setting.Or(v.Name, usual)
	i := slices.IndexFunc(encoders, func(e encoder) bool { return e.name == name })
	if i < 0 {
		c.Unknown("vision_config", "model_type "+name)
		i = 0
	}
	encoders[i].read(c.Component("vision_config", encoders[i].name), t)
	return encoders[i]
}

// tower returns the encoder as a tower that returns the output of some layers, side by side: those
// of states, where 0 means the embeddings, 1 the first block and -1 the last. Without states it is
// the encoder's own output. The class token is left out if cropped.
func (e encoder) tower(c family.Transformer, states []int, cropped bool) tape.Layer {
	c.Channels, c.Patch = setting.Or(c.Channels, 3), setting.Or(c.Patch, 16)
	return tape.Module{Name: "VisionModel", Parts: e.parts(c), Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		all, output := e.run(f, c, x)
		family.Return(f.Tape, output)
		crop := func(x tape.Tensor) tape.Tensor {
			if cropped {
				return f.From(x, 1, 1)
			}
			return x
		}
		if len(states) == 0 {
			return crop(output)
		}
		var chosen []tape.Tensor
		for _, i := range states {
			state := all[min(max(0, (i+len(all))%len(all)), len(all)-1)]
			family.Return(f.Tape, state)
			chosen = append(chosen, crop(state))
		}
		if len(chosen) == 1 {
			return chosen[0]
		}
		return f.Cat(2, chosen...)
	}}
}

// throughBlocks runs the numbered blocks of this name, and returns x and the output of each.
func throughBlocks(f *tape.Flow, name string, blocks int, x tape.Tensor) []tape.Tensor {
	states := []tape.Tensor{x}
	for i := range blocks {
		x = f.Call(name+"."+strconv.Itoa(i), x)
		states = append(states, x)
	}
	return states
}

// layerNumbers reads a number of a layer or several, where 0 is before the first block and -1 the
// last of them. without is the number if the key has no value.
func layerNumbers(c *family.Config, key string, blocks, without int) []int {
	numbers := oneOrMore{without}
	if c.Decode(key, &numbers); len(numbers) == 0 {
		c.Fail(key, "it names no layer")
	}
	for _, n := range numbers {
		if n > blocks || n < -blocks-1 {
			c.Fail(key, "there is no layer %d: the tower has %d blocks", n, blocks)
		}
	}
	return numbers
}

// oneOrMore is a number or a list of numbers.
type oneOrMore []int

// UnmarshalJSON reads both.
func (n *oneOrMore) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '[' {
		return json.Unmarshal(text, (*[]int)(n))
	}
	*n = []int{0}
	return json.Unmarshal(text, &(*n)[0])
}
