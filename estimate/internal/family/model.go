package family

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Model is what a config.json or the metadata of a GGUF file describe.
type Model struct {
	Type string // its model_type or general.architecture
	Transformer
	Objective
	Images Images // replaces the Transformer; nil means none
	// Stored corrects the model by which tensors the files have, where a config.json does not tell
	// all; nil if it does.
	Stored func(a *Model, has func(tensor string) bool)
	Unread setting.Unread // keys of the config.json that no reader looked at
	// Assumed says, a sentence each, what is taken for granted where neither a config.json nor tensors tell.
	Assumed []string
	Float32 setting.Float32Parts
	// Longest is the number of tokens that a text may have, by the file; 0 means that it does not say.
	Longest    int
	References int // images that the image which it makes refers to
	latent     int // side of the latent image that FLUX makes; 0 means the usual one
	frames     int // of the latent video that it makes; 0 means the usual number
}

// Objective is what a config.json says about the loss of a model's class, beside the sizes.
type Objective struct {
	class   string // the first of architectures; empty for the class without a head
	problem string // problem_type of a classifier; empty means what the labels show
	Wide    bool   // the class converts the logits of each token to float32 for its loss
}

// Images is an image model that is not a transformer.
type Images interface {
	Layers() []tape.Layer
	// Inputs returns a batch of images of the usual size, and texts of this length; 0 means the
	// usual length.
	Inputs(batch, length int) []Input
	// Resized returns the model for images with another side, in pixels.
	Resized(side int) (Images, error)
}

// usualTokens is the most that a text has if the user gives no length.
const usualTokens = 2048

// mostPositions bounds the context, and so the rotary tables.
const mostPositions = 1 << 24

// usualSide is the usual side of the latent image that FLUX makes, for 1024 x 1024 pixels. Four of
// its pixels make one position.
const usualSide = 128

// latentScale is the number of pixels along a side that become one pixel of the latent image in the
// autoencoders of Stable Diffusion and FLUX.
const latentScale = 8

// Layers returns the model's layers.
func (a *Model) Layers() []tape.Layer {
	if a.Images != nil {
		return a.Images.Layers()
	}
	return a.Transformer.Layers()
}

// MakesImages reports whether the model makes images, or is an image model that is not a
// transformer.
func (a *Model) MakesImages() bool { return a.Images != nil || a.Family.OrLlama().Makes }

// SeesImages reports whether the model is a transformer that reads only images.
func (a *Model) SeesImages() bool { return a.Images == nil && a.Family.OrLlama().Images }

// MaxPositions returns the number of learned positions for a text; 0 means any number.
func (a *Model) MaxPositions() int { return a.Positions - a.Family.OrLlama().Padding }

// ContextLength returns the number of tokens that a text may have: of positions that the model learned, or else the number
// for which its file says that it was made. 0 means that neither is known.
func (a *Model) ContextLength() int { return cmp.Or(a.MaxPositions(), min(a.Longest, mostPositions)) }

// UsualTokens returns the length of the model's text if the user gives none: its context, but not more than 2,048 tokens, and
// beside these the tokens for its images and sounds.
func (a *Model) UsualTokens() int {
	if usual := a.Family.OrLlama().Usual; usual > 0 {
		return usual
	}
	beside, _ := a.ImageTokens()
	beside += a.SoundTokens()
	context := cmp.Or(a.ContextLength(), usualTokens)
	usual := min(usualTokens, context) + beside
	if most := a.MaxPositions(); most > 0 {
		return min(usual, most)
	}
	return min(usual, max(context, beside), LargestNumber)
}

// ServedTokens returns for how many tokens of a text keys and values are kept if the user gives no number: the context.
func (a *Model) ServedTokens() int { return cmp.Or(a.ContextLength(), a.UsualTokens()) }

// Inputs returns what the model reads: a batch of texts of this length, where 0 means the usual
// length, or images of its size.
func (a *Model) Inputs(batch, length int) []Input {
	switch {
	case a.Images != nil:
		return a.Images.Inputs(batch, length)
	case a.MakesImages():
		return a.Family.Input(a, batch, length)
	case a.SeesImages():
		return []Input{Reals(batch, a.Channels, a.Image, a.Image)}
	}
	length = cmp.Or(length, a.UsualTokens())
	text := Tokens(batch, length)
	switch {
	case a.Family.OrLlama().Input != nil:
		return a.Family.Input(a, batch, length)
	case a.Family.Seq2Seq():
		return []Input{text, text}
	}
	return append([]Input{text}, a.ofTowers(batch, length)...)
}

// LatentSide returns the side of the latent image that the model makes.
func (a *Model) LatentSide() int {
	if l, ok := a.Images.(interface{ LatentSide() int }); ok {
		return l.LatentSide()
	}
	return cmp.Or(a.latent, a.Image, usualSide)
}

// ImageSide returns the side of the images that the model makes, in pixels; 0 if it makes none.
func (a *Model) ImageSide() int {
	if frames, _ := a.Video(); frames > 0 || !a.MakesImages() {
		return 0
	}
	switch images := a.Images.(type) {
	case interface{ ImageSide() int }:
		return images.ImageSide()
	case nil, interface{ LatentSide() int }:
		return setting.Product(a.LatentSide(), a.PixelScale())
	}
	return 0
}

// LatentFrames returns the number of frames of the latent video that the model makes: 1, if it makes images.
func (a *Model) LatentFrames() int { return max(1, cmp.Or(a.frames, a.Family.OrLlama().Frames)) }

// PixelScale returns how many pixels along a side become one of the latent image that the model makes.
func (a *Model) PixelScale() int { return cmp.Or(a.Family.OrLlama().Scale, latentScale) }

// Video returns the number of frames of the videos that the model makes, and the side of each in pixels. Both are 0 if it
// makes none.
func (a *Model) Video() (frames, side int) {
	if a.Images != nil {
		if v, ok := a.Images.(interface{ Video() (frames, side int) }); ok {
			return v.Video()
		}
		return 0, 0
	}
	rate := a.Family.OrLlama().Rate
	if rate == 0 {
		return 0, 0
	}
	return (a.LatentFrames()-1)*rate + 1, a.LatentSide() * a.PixelScale()
}

// MaxBlocks bounds the blocks and the experts that a file can ask for. The largest models have some
// hundreds.
const MaxBlocks = 1024

// LargestNumber bounds every number of a model.
const LargestNumber = math.MaxInt32

// check returns an error if the numbers contradict each other.
func (a *Model) check() error {
	switch {
	case a.Images != nil:
	case a.Heads%max(1, a.KVHeads) != 0:
		return fmt.Errorf("%d heads cannot share %d heads of keys and values", a.Heads, a.KVHeads)
	case a.HeadSize == 0 && a.Hidden%a.Heads != 0:
		return fmt.Errorf("a hidden size of %d does not divide into %d heads", a.Hidden, a.Heads)
	case a.RotaryDim > a.HeadWidth():
		return fmt.Errorf("%d elements of a head rotate, of %d", a.RotaryDim, a.HeadWidth())
	case a.TopK > a.Experts:
		return fmt.Errorf("each token visits %d experts, of %d", a.TopK, a.Experts)
	case a.Window < 0:
		return fmt.Errorf("a sliding window of %d", a.Window)
	case a.Window == 1 && !a.Family.Encoder():
		return errors.New("a sliding window of 1, in which each token attends to itself alone")
	case a.Family.OrLlama().Patched && a.Image%a.Patch != 0:
		return fmt.Errorf("an image of %d does not divide into patches of %d", a.Image, a.Patch)
	case a.Blocks > MaxBlocks:
		return fmt.Errorf("%d blocks, more than %d", a.Blocks, MaxBlocks)
	case a.Experts > MaxBlocks:
		return fmt.Errorf("%d experts, more than %d", a.Experts, MaxBlocks)
	}
	return nil
}

// kinds returns the kinds of the blocks, at most as many as are allowed.
func (a *Model) kinds() []BlockKind {
	if a.Kinds == nil {
		a.Kinds = make([]BlockKind, max(0, min(a.Blocks, MaxBlocks+1)))
	}
	return a.Kinds
}

// mark adds a kind to the blocks for which is returns true. Blocks count from 0.
func (a *Model) mark(kind BlockKind, is func(block int) bool) {
	for i, kinds := 0, a.kinds(); i < len(kinds); i++ {
		if is(i) {
			kinds[i] |= kind
		}
	}
}

// sparse marks the blocks that have a mixture. If none has one, there are no experts.
func (a *Model) sparse(is func(block int) bool) {
	a.mark(Sparse, is)
	if !slices.ContainsFunc(a.Kinds, func(k BlockKind) bool { return k&Sparse != 0 }) {
		a.Experts, a.TopK = 0, 0
	}
}

// stillBeyondWindow marks blocks without a window as not rotating, in a model where others have
// one.
func (a *Model) stillBeyondWindow() {
	for i, kind := range a.Kinds {
		if kind&Windowed == 0 {
			a.Kinds[i] |= NoRotation
		}
	}
}

// borrow marks the last layers, this many, as using the keys and values of earlier ones.
func (a *Model) borrow(layers int) error {
	if layers < 0 || layers >= max(1, a.Blocks) {
		return fmt.Errorf("%d of %d layers use the keys and values of others", layers, a.Blocks)
	}
	if layers > 0 {
		a.mark(Borrowing, func(block int) bool { return block >= a.Blocks-layers })
	}
	return nil
}

// Resize sets the side of the images that the model reads or makes, in pixels.
func (a *Model) Resize(side int) error {
	switch {
	case side < 1 || side > LargestNumber:
		return fmt.Errorf("want a side of 1 to %d pixels", LargestNumber)
	case a.Images != nil:
		resized, err := a.Images.Resized(side)
		if err == nil {
			a.Images = resized
		}
		return err
	case a.SeesImages() && side == a.Image: // unchanged
		return nil
	case !a.MakesImages():
		return fmt.Errorf("a %s model reads those of one size, or none", a.Type)
	}
	patch := 2 // of FLUX, which reads latent images in patches
	if a.Image > 0 {
		patch = a.Patch
	}
	scale := a.PixelScale()
	latent, err := scaledSide(side, scale, 1)
	if err == nil {
		_, err = scaledSide(side, scale, patch)
	}
	switch {
	case err != nil:
		return err
	case a.Positions > 0 && (latent/patch)*(latent/patch) > a.Positions:
		return fmt.Errorf("the model has %d positions, fewer than their patches", a.Positions)
	case a.Image > 0:
		a.Image = latent
	default:
		a.latent = latent
	}
	return nil
}

// UsualImage is the side of the images in a prompt if the user gives no size, in pixels.
const UsualImage = 1024

// See gives each text this many images of one size, in pixels. They run through the model's tower.
func (a *Model) See(count, width, height int) error {
	if width < 1 || height < 1 || width > maxSide || height > maxSide {
		return fmt.Errorf("images of %d x %d: want sides of 1 to %d pixels", width, height, maxSide)
	}
	tower, err := a.given(a.Vision, count, Size{Width: width, Height: height}, "images")
	if err != nil {
		return err
	}
	a.Vision = tower
	return nil
}

// UsualSeconds is the length of the sounds in a prompt if the user gives none.
const UsualSeconds = 30

// Hear gives each text this many sounds of one length. They run through the model's tower.
func (a *Model) Hear(count int, seconds float64) error {
	if !(seconds > 0 && seconds <= maxSeconds) {
		return fmt.Errorf("sounds of %v seconds: want more than 0 and at most %d", seconds, maxSeconds)
	}
	tower, err := a.given(a.Audio, count, Size{Seconds: seconds}, "sounds")
	if err != nil {
		return err
	}
	a.Audio = tower
	return nil
}

// given returns a tower that reads so many of what it reads with each text, of one size.
func (a *Model) given(tower *Transformer, count int, size Size, what string) (*Transformer, error) {
	switch {
	case a.Images != nil || tower == nil || tower.Family.OrLlama().Tower == nil || a.Family.Encoder():
		return nil, fmt.Errorf("a %s model reads no %s with its text", a.Type, what)
	case tower.Family.Look == nil || a.Family.OrLlama().Layers != nil:
		return nil, fmt.Errorf("how %s run through a %s model is not known", what, a.Type)
	case count < 1 || count > maxImages:
		return nil, fmt.Errorf("%d %s: want 1 to %d", count, what, maxImages)
	}
	p, given := Prompt{Count: count, Size: size}, *tower
	given.Prompt = &p
	look, err := given.Family.Look(given)
	if unfit := Unfit(""); errors.As(err, &unfit) {
		return nil, fmt.Errorf("no %s run through a %s model of this config.json: %w", what, a.Type, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s of %v: %w", what, size, err)
	}
	p.Look = look
	p.Tokens, p.Vectors = setting.Product(count, look.Tokens), setting.Product(count, look.Vectors)
	return &given, nil
}

// The most images or sounds in a text, the longest side of an image, and the longest sound.
const (
	maxImages  = 1 << 16
	maxSide    = 1 << 16
	maxSeconds = 1 << 20
)

// LatentSide returns the side of the latent image for a side in pixels, which must be a multiple of
// unit latent pixels.
func LatentSide(pixels, unit int) (int, error) {
	return scaledSide(pixels, latentScale, unit)
}

// scaledSide is LatentSide where this many pixels become one of the latent image.
func scaledSide(pixels, scale, unit int) (int, error) {
	if pixels%(unit*scale) != 0 {
		return 0, fmt.Errorf("want a multiple of %d pixels", unit*scale)
	}
	return pixels / scale, nil
}

// Refer sets the number of images that the image which the model makes refers to.
func (a *Model) Refer(images int) error {
	if images < 0 || images > maxReferences {
		return fmt.Errorf("want 0 to %d images", maxReferences)
	}
	if i, ok := a.Images.(interface {
		Referring(images int) (Images, error)
	}); ok {
		referring, err := i.Referring(images)
		if err == nil {
			a.Images = referring
		}
		return err
	}
	if a.Images != nil || !a.Family.OrLlama().Refers {
		return fmt.Errorf("a %s model makes images of no others", a.Type)
	}
	a.References = images
	return nil
}

const maxReferences = 64

// Film sets the number of frames of the videos that the model makes.
func (a *Model) Film(frames int) error {
	if frames < 1 || frames > maxFrames {
		return fmt.Errorf("want 1 to %d frames", maxFrames)
	}
	if i, ok := a.Images.(interface {
		Filmed(frames int) (Images, error)
	}); ok {
		filmed, err := i.Filmed(frames)
		if err == nil {
			a.Images = filmed
		}
		return err
	}
	if a.Images != nil || a.Family.OrLlama().Rate == 0 {
		return fmt.Errorf("a %s model makes no videos", a.Type)
	}
	n, err := LatentFrames(frames, a.Family.Rate)
	if err == nil {
		a.frames = n
	}
	return err
}

// maxFrames bounds the frames of a video, which autoencoders decode a few at a time.
const maxFrames = 1 << 13

// LatentFrames returns the number of latent frames that so many frames become. The first stays alone, and of the others
// rate become one.
func LatentFrames(frames, rate int) (int, error) {
	if frames < 1 || (frames-1)%rate != 0 {
		below := max(0, frames-1) / rate * rate
		return 0, fmt.Errorf("want %dk + 1 frames, such as %d or %d", rate, below+1, below+rate+1)
	}
	return (frames-1)/rate + 1, nil
}

// each returns a function that is true for every n-th layer.
func each(n int) func(layer int) bool {
	return func(layer int) bool { return (layer+1)%n == 0 }
}

// Doubts returns what was not read, with the modules of the model's parts. What a tower makes of images that run through
// it reaches the text, so that a key of such a tower bears on the whole model.
func (a *Model) Doubts() setting.Unread {
	u := a.Unread
	u.Parts = slices.Clone(u.Parts)
	towers := map[string][]string{ofImages: modulesOf(a.Vision, a.Hidden), ofSound: modulesOf(a.Audio, a.Hidden)}
	towers[ofText] = slices.Concat(towers[ofImages], towers[ofSound])
	if a.Images != nil || a.Family.Encoder() {
		return u
	}
	for i := range u.Parts {
		p := &u.Parts[i]
		p.Modules, p.Others = towers[p.Name], p.Name == ofText
	}
	return u
}

// modulesOf returns the modules of a tower through which nothing runs.
func modulesOf(tower *Transformer, width int) []string {
	if tower == nil || tower.Prompt != nil || tower.Family.OrLlama().Tower == nil {
		return nil
	}
	var names []string
	for _, part := range tower.Family.Tower(*tower, width) {
		if named, ok := part.(tape.Named); ok {
			names = append(names, named.Name)
		}
	}
	return names
}
