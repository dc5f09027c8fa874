package vision

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// LLaVANext is LLaVA that also reads an image in tiles, and learns a vector for the end of each row
// of their patches (modeling_llava_next.py).
var LLaVANext = &family.Family{
	Name:  "LLaVA-NeXT's tower",
	Tower: llavaNextTower,
	Look:  llavaNextLook,
	Role:  family.Encoder,
	Types: []family.Type{{Name: "llava_next", Base: "LlavaNextModel", Read: readLLaVANext}},
}

// LLaVAOneVision is LLaVA-NeXT with a SigLIP. A single image is read in up to 36 tiles, whose
// patches are scaled down if there are too many; several images are not cut into tiles
// (modeling_llava_onevision.py).
var LLaVAOneVision = &family.Family{
	Name:  "LLaVA-OneVision's tower",
	Tower: llavaNextTower,
	Look:  llavaNextLook,
	Role:  family.Encoder,
	Types: []family.Type{{Name: "llava_onevision", Base: "LlavaOnevisionModel", Read: readLLaVAOneVision}},
}

// tiled says how an image is cut into tiles.
type tiled struct {
	picked
	sizes [][2]int // heights and widths to which an image may be scaled, in pixels
	most  int      // tiles that the patches may have before they are scaled down; 0 means any number
	alone bool     // only an image that is alone is cut
}

func tiledOf(c family.Transformer) tiled {
	if own := family.Own[tiled](c); own != nil {
		return *own
	}
	return tiled{picked: pickedOf(c)}
}

func llavaNextTower(c family.Transformer, width int) []tape.Layer {
	own := tiledOf(c)
	return []tape.Layer{
		tape.Inline(joined{}),
		tape.As("vision_tower", own.encoder.tower(c, own.states, !own.whole)),
		tape.As("multi_modal_projector", own.projector(c, width)),
		tape.As("image_newline", rowEnds{own, c, width}),
		family.Listed,
	}
}

// joined joins the tiles of all images in new memory.
type joined struct{}

func (joined) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor { return t.Copy(x) }

// rowEnds puts the patches of the tiles in rows, cuts off what pads the image, adds a learned vector
// after each row, and puts the patches of the whole image before them (pack_image_features).
type rowEnds struct {
	tiled
	c     family.Transformer
	width int
}

func (rowEnds) Kind() string { return "Parameter" }

func (l rowEnds) Declare(d *tape.Declaration) { d.Param("weight", l.width) }

func (l rowEnds) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(tiles, patches, hidden)")
	cut, err := l.cut(l.c)
	if err != nil {
		t.Failf("%v", err)
	}
	images := max(1, x.Shape[0]/cut.tiles)
	join := func(x tape.Tensor, vectors int) tape.Tensor {
		return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{images * vectors, l.width}, Params: true, PassGrad: true})
	}
	if cut.tiles == 1 {
		return join(x, x.Shape[1]+1)
	}
	parts := t.Split(t.View(x, images, cut.tiles, x.Shape[1]*l.width), 1, 1, cut.tiles-1)
	rows := t.Copy(parts[1])
	if cut.scaled {
		rows = t.Op(tape.Op{In: []tape.Tensor{rows}, Shape: alloc.Shape{images, l.width, cut.rows, cut.columns}})
	}
	rows = join(rows, cut.rows*(cut.columns+1))
	return t.Op(tape.Op{In: []tape.Tensor{parts[0], rows}, Shape: alloc.Shape{images * (x.Shape[1] + cut.rows*(cut.columns+1)), l.width}, PassGrad: true})
}

// cut is what becomes of one image.
type cut struct {
	tiles         int  // the whole image among them
	rows, columns int  // of patches of all tiles, without what pads the image
	scaled        bool // they were scaled down
}

// cut cuts an image of the Prompt (image_size_to_num_patches, unpad_image).
func (l tiled) cut(c family.Transformer) (cut, error) {
	if c.Prompt == nil || l.alone && c.Prompt.Count > 1 {
		return cut{tiles: 1}, nil
	}
	if len(l.sizes) == 0 || c.Side() < 1 {
		return cut{}, family.Unfit("image_grid_pinpoints names no size")
	}
	width, height := c.Prompt.Width, c.Prompt.Height
	best := bestSize(l.sizes, width, height)
	up := func(n int) int { return (n + c.Image - 1) / c.Image }
	all := cut{tiles: up(best[0])*up(best[1]) + 1, rows: best[0] / c.Image * c.Side(), columns: best[1] / c.Image * c.Side()}
	if all.rows < 1 || all.columns < 1 {
		return cut{}, family.Unfit("image_grid_pinpoints names a size smaller than a tile")
	}
	if float64(width)/float64(height) > float64(all.columns)/float64(all.rows) {
		all.rows -= 2 * ((all.rows - rounded(float64(height)*float64(all.columns)/float64(width))) / 2)
	} else {
		all.columns -= 2 * ((all.columns - rounded(float64(width)*float64(all.rows)/float64(height))) / 2)
	}
	if l.most > 0 {
		if ratio := math.Sqrt(float64(all.rows) * float64(all.columns) / float64(l.most*c.Side()*c.Side())); ratio > 1.1 {
			all.rows, all.columns, all.scaled = int(float64(all.rows)/ratio), int(float64(all.columns)/ratio), true
		}
	}
	if all.rows < 1 || all.columns < 1 {
		return cut{}, errors.New("no patch of the image is left: it is too narrow")
	}
	return all, nil
}

// rounded is Python's int(round(x, 7)).
func rounded(x float64) int { return int(math.Round(x*1e7) / 1e7) }

// bestSize returns the size, height and width, in which most of an image of width x height pixels is
// left, and of these the one with the least padding (image_processing_utils.py, select_best_resolution).
func bestSize(sizes [][2]int, width, height int) (best [2]int) {
	most, waste := -1, math.MaxInt
	for _, size := range sizes {
		scale := math.Min(float64(size[1])/float64(width), float64(size[0])/float64(height))
		seen := min(int(float64(width)*scale)*int(float64(height)*scale), width*height)
		if left := size[0]*size[1] - seen; seen > most || seen == most && left < waste {
			best, most, waste = size, seen, left
		}
	}
	return best
}

// llavaNextLook is that of an image that is read whole and in tiles.
func llavaNextLook(c family.Transformer) (family.Look, error) {
	own := tiledOf(c)
	if own.encoder.look != nil || own.encoder.class == own.whole {
		return family.Look{}, family.Unfit("its encoder's vectors do not stand in rows")
	}
	cut, err := own.cut(c)
	tokens := own.vectors(c) + cut.rows*(cut.columns+1)
	if cut.tiles == 1 {
		tokens++
	}
	return family.Look{Tokens: tokens, Sized: cut.tiles > 1, Inputs: family.Joined(cut.tiles, c.Channels, c.Image, c.Image)}, err
}

// readTiled reads what LLaVA-NeXT and LLaVA-OneVision have in common. usual lists the sizes of images
// without image_grid_pinpoints.
func readTiled(c *family.Config, t *family.Model, encoder string, layer int, usual [][2]int) *tiled {
	own := tiled{picked: *readPicked(c, t, encoder, layer), sizes: usual}
	const most = 1 << 12
	if c.Decode("image_grid_pinpoints", &own.sizes); len(own.sizes) > most {
		c.Fail("image_grid_pinpoints", "it has %d sizes, more than %d", len(own.sizes), most)
	}
	for _, size := range own.sizes {
		if size[0] < 1 || size[1] < 1 || size[0] > setting.MaxField || size[1] > setting.MaxField {
			c.Fail("image_grid_pinpoints", "there is no size of %d x %d", size[1], size[0])
		}
	}
	return &own
}

func readLLaVANext(c *family.Config, a *family.Model) {
	imageText{head: "LlavaNextForConditionalGeneration", usual: "llama", numbers: func(_, c *family.Config, t *family.Model) {
		t.Own = readTiled(c, t, "clip_vision_model", -2, [][2]int{{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}})
	}}.read(c, a)
}

func readLLaVAOneVision(c *family.Config, a *family.Model) {
	imageText{head: "LlavaOnevisionForConditionalGeneration", usual: "qwen2", numbers: func(_, c *family.Config, t *family.Model) {
		var usual [][2]int
		for height := 384; height <= 2304; height += 384 {
			for width := 384; width <= 2304; width += 384 {
				usual = append(usual, [2]int{height, width})
			}
		}
		own := readTiled(c, t, "siglip_vision_model", -1, usual)
		own.alone = true
		own.whole = setting.Or(c.Word("vision_feature_select_strategy"), "full") == "full"
		ratio := setting.Or(c.Word("vision_aspect_ratio"), "anyres_max_9")
		var err error
		if own.most, err = strconv.Atoi(strings.TrimPrefix(ratio, "anyres_max_")); err != nil || own.most < 1 || own.most > setting.MaxField {
			c.Unknown("vision_aspect_ratio", ratio)
		}
		t.Own = own
	}}.read(c, a)
}
