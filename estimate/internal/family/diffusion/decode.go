package diffusion

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// decoder is an autoencoder of images or videos. Latents returns the shape of what it decodes.
type decoder interface {
	Latents(batch, side, frames int) []int
}

// tiled is an autoencoder that can decode in tiles. Tiles returns the side of a tile in latents, and the distance from one to the
// next, which overlap.
type tiled interface {
	Tiles() (side, step int)
}

// waiting is a part of a pipeline that stays in memory while another runs. It returns its input as it is. If it has
// latents, it decodes as many of that shape as its input has images.
type waiting struct {
	layers  tape.Sequential
	latents []int
	upcast  bool
	tiles   tiled // nil if it decodes in one piece only
}

func (w waiting) Declare(d *tape.Declaration) { w.layers.Declare(d) }

func (w waiting) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if w.latents == nil {
		return x
	}
	if !w.upcast || t.Activation() != alloc.Float16 {
		w.decode(t, x.Dim(0))
		return x
	}
	// What the weights take more.
	wider := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{int(min(t.Elements(), setting.MaxField))}, DType: alloc.Float16})
	t.ComputeIn(alloc.Float32, func() { w.decode(t, x.Dim(0)) })
	t.Hold(wider)
	return x
}

// decode decodes a batch of images: with slicing each for itself, as diffusers' AutoencoderMixin does.
func (w waiting) decode(t *tape.Tape, batch int) {
	if !t.Cfg.Decode.Sliced || batch == 1 {
		w.batch(t, batch)
		return
	}
	var images []tape.Tensor
	for range batch {
		images = append(images, w.batch(t, 1))
	}
	t.Hold(t.Cat(0, images...))
}

// batch decodes a batch at once: with tiling one tile after another, if it is larger than a tile.
func (w waiting) batch(t *tape.Tape, n int) tape.Tensor {
	latents := append([]int{n}, w.latents[1:]...)
	last := len(latents) - 1
	if t.Cfg.Decode.Tiled && w.tiles == nil {
		t.Failf("how diffusers tiles this autoencoder is not known: leave tiling out")
	}
	if t.Cfg.Decode.Tiled {
		if side, step := w.tiles.Tiles(); step > 0 && max(latents[last], latents[last-1]) > side {
			return w.inTiles(t, latents, side, step)
		}
	}
	return w.layers.Forward(t, t.Const(0, latents...))
}

// inTiles decodes one tile after another, and joins them when all are there (diffusers 0.42, autoencoder_kl.py,
// AutoencoderKL.tiled_decode, and the same of other autoencoders): in each row, and then the rows.
func (w waiting) inTiles(t *tape.Tape, latents []int, side, step int) tape.Tensor {
	last := len(latents) - 1
	height, width := latents[last-1], latents[last]
	if (height/step+1)*(width/step+1) > maxTiles {
		t.Failf("%d x %d latents are more than %d tiles", height, width, maxTiles)
	}
	z := t.Const(0, latents...)
	var tiles [][]tape.Tensor
	for i := 0; i < height; i += step {
		var row []tape.Tensor
		for j := 0; j < width; j += step {
			latents[last-1], latents[last] = min(side, height-i), min(side, width-j)
			row = append(row, w.layers.Forward(t, t.Op(tape.Op{In: []tape.Tensor{z}, Shape: latents, View: true})))
		}
		tiles = append(tiles, row)
	}
	var rows, all []tape.Tensor
	for i, row := range tiles {
		first := row[0]
		pixels := first.Dim(last-1) / min(side, height-i*step) // along a side of a latent
		shape := append(alloc.Shape{}, first.Shape...)
		shape[last-1], shape[last] = min(step, height-i*step)*pixels, width*pixels
		rows = append(rows, t.Op(tape.Op{In: row, Shape: shape}))
		all = append(all, row...)
	}
	image := t.Cat(last-1, rows...)
	t.Hold(all...)
	t.Hold(rows...)
	return image
}

const maxTiles = 1 << 8
