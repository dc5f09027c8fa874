package estimating

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
	"github.com/gpumemtrack/gpumemtrack/estimate/llamacpp"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
	"github.com/gpumemtrack/gpumemtrack/internal/engines"
)

// estimate returns the report that the flags ask for, without a search.
func (o estimateOptions) estimate(name string) (*estimate.Report, error) {
	options, err := o.options()
	if err != nil {
		return nil, err
	}
	return o.report(name, append(options, estimate.AskedAlone()), &estimated{})
}

// report estimates a file if there is one of this name, else a known model.
func (o estimateOptions) report(name string, options []estimate.Option, e *estimated) (*estimate.Report, error) {
	if _, err := os.Stat(name); err == nil {
		return o.ofFile(name, options, e)
	}
	m, err := zoo.ByName(name)
	if err != nil {
		return nil, unknown(name)
	}
	if as := m.Published(); as.Quantized {
		e.quantized = as.Types
	} else {
		e.published = as.Types
	}
	switch {
	case denoises(m.Config):
		e.notes = append(e.notes, "what makes images is counted alone: text encoders and the autoencoder beside it are not")
	case bytes.Contains(m.Config, []byte("DiffusionPipeline")) && !bytes.Contains(m.Config, []byte(`"vae"`)):
		options = append(options, estimate.Missing("the autoencoder"))
	}
	if m.Config != nil {
		c, err := checkpoint.ParseConfig(m.Title, m.Config)
		return o.ofOpened(c, err, options, e)
	}
	return o.ofKnown(m, options)
}

// denoises reports whether a config is that of the part of a pipeline of diffusers which makes images.
func denoises(config []byte) bool {
	class := func(name string) bool { return bytes.Contains(config, []byte(name)) }
	return (class("Transformer2DModel") || class("Transformer3DModel") || class("UNet2DConditionModel")) && !class("DiffusionPipeline")
}

func (o estimateOptions) ofFile(path string, options []estimate.Option, e *estimated) (*estimate.Report, error) {
	c, err := checkpoint.ReadFile(path)
	return o.ofOpened(c, err, options, e)
}

// ofOpened estimates a model from its opened files, or returns err.
func (o estimateOptions) ofOpened(c *checkpoint.File, err error, options []estimate.Option, e *estimated) (*estimate.Report, error) {
	if err == nil && o.image > 0 {
		c, err = c.Images(o.image)
	}
	if err == nil && o.frames > 0 {
		c, err = o.filmed(c)
	}
	if err == nil && o.references > 0 {
		if c, err = c.References(o.references); err != nil {
			err = cli.UsageError("estimate: --reference-images: %w", err)
		}
	}
	if err == nil && o.images.count+o.sounds.count > 0 {
		c, err = prompted(o, c, e)
	}
	if err != nil {
		return nil, err
	}
	if o.batched > 0 {
		o.batched = max(o.batched, e.ImageTokens) // the images of a text are never cut
	}
	if e.Frames, e.side = c.Video(); e.Frames == 0 {
		e.side = c.ImageSide()
	}
	o.wholeImages(c, e)
	e.sound = c.ReadsSound()
	if o.lora > 0 && len(o.targets) == 0 {
		if o.targets, err = fileTargets(c, e); err != nil {
			return nil, err
		}
	}
	trained, err := o.modelOptions(c.Loss(), func() (*estimate.Report, error) { return c.Report() })
	if err != nil {
		return nil, err
	}
	parts, err := o.quantizedParts(c, e)
	if err != nil {
		return nil, err
	}
	options = append(append(options, trained...), parts...)
	input, err := o.fileInput(c)
	alone := weightsKnownAlone(c)
	switch {
	case err == nil:
		options = append(options, input)
	case alone && o.searches() == 0:
		e.alone = c
	case o.serve && errors.Is(err, checkpoint.ErrUnknownArchitecture): // the size of the cache may still be known
	case len(o.ofInput()) > 0:
		return nil, fmt.Errorf("%s: no input for %s: %w", c.Name, strings.Join(o.ofInput(), " and "), err)
	}
	if o.serve {
		cache, err := o.fileCache(c)
		if err != nil && e.alone != nil && !o.engine.isLlama() {
			return c.Report(options...) // without the cache, which is unknown too
		}
		if err != nil {
			return nil, err
		}
		if err := o.cache(&cache, o.computed(c)); err != nil {
			return nil, err
		}
		if _, err := c.Architecture(); err != nil && c.Format == "config" {
			return nil, newCacheAlone(c, cache, err)
		}
		served, err := o.servingOptions(cache, c, e)
		if err != nil {
			return nil, err
		}
		gguf, err := o.ggufOptions(c, e)
		if err != nil {
			return nil, err
		}
		options = append(append(options, served...), gguf...)
	}
	if o.quantize {
		layers, err := c.Layers()
		if err != nil {
			return nil, err
		}
		return o.bestQuantization(layers, append([]estimate.Option{estimate.Name(c.Name), estimate.Precision(alloc.Float16)}, options...), e)
	}
	report, err := c.Report(options...)
	if err == nil && o.serve && !o.engine.isLlama() && c.Format == "GGUF" {
		report.Notes = append(report.Notes, "this is PyTorch's memory: --engine llama.cpp tells llama.cpp's, which GGUF files are made for")
	}
	return report, err
}

// wholeImages sets the tokens of a step to the engine's default for models that run images whole, if c is one.
func (o *estimateOptions) wholeImages(c *checkpoint.File, e *estimated) {
	const flag = "max-batched-tokens"
	if !o.serve || !o.engine.sets(flag) || !c.WholeImages() {
		return
	}
	run := o.run()
	run.Release, run.Model = o.engine.release, []string{engines.WholeImages}
	defaults := o.engine.For(run, o.flagSet.Changed)
	for _, d := range defaults {
		if d.Flag == flag {
			n, _ := strconv.Atoi(d.Value) // it is a part of the program
			o.batched, o.engine.defaults = n, defaults
			e.options.batched, e.options.engine.defaults = n, defaults
		}
	}
}

// ggufOptions returns the option for the weights of a GGUF file that --quantize names, after those of a server.
func (o estimateOptions) ggufOptions(c *checkpoint.File, e *estimated) ([]estimate.Option, error) {
	if !o.engine.isLlama() {
		return nil, nil
	}
	q, err := ggufNamed(o.loss.base)
	if err != nil || q == "" {
		return nil, err
	}
	if c.Format == "GGUF" {
		return nil, cli.UsageError("estimate: --quantize %s: %s is a GGUF file, whose weights count as they are stored: leave --quantize out", o.loss.base, c.Name)
	}
	layers, err := c.Layers()
	if err != nil {
		return nil, err
	}
	stored, err := o.engine.quantizer()(q, layers)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	if e.quantized = string(q); strings.HasPrefix(c.Published(), "MXFP4") && q != "MXFP4_MOE" {
		e.notes = append(e.notes, "the experts are published in MXFP4, which llama-quantize changes only with --allow-requantize: files that keep them so are as --quantize mxfp4 says")
	}
	return []estimate.Option{stored}, nil
}

// quantizedParts returns the option that quantizes parts of a pipeline, and notes which.
func (o estimateOptions) quantizedParts(c *checkpoint.File, e *estimated) ([]estimate.Option, error) {
	if o.loss.base == "" || o.engine.isLlama() {
		return nil, nil
	}
	q, err := quantizedInPyTorch(o.loss.base)
	runs, held := c.Parts()
	switch {
	case err != nil:
		return nil, err
	case runs == "" && q.Parts != nil:
		return nil, cli.UsageError("estimate: --quantize %s: %s is no pipeline of several parts: give one form", o.loss.base, c.Name)
	case runs == "" || len(held) == 0:
		return nil, nil
	}
	wide := o.dtype
	if wide == "" {
		wide = c.Published()
	}
	q, note, err := quantizedParts(q, runs, held, wide)
	if err == nil {
		e.notes = append(e.notes, note)
	}
	return []estimate.Option{q}, err
}

// filmed returns the model for videos of as many frames as the flags ask for.
func (o estimateOptions) filmed(c *checkpoint.File) (*checkpoint.File, error) {
	c, err := c.Videos(o.frames)
	if err != nil {
		return nil, cli.UsageError("estimate: --frames %d: %w", o.frames, err)
	}
	return c, nil
}

// prompted returns the model with the images and sounds that the flags ask for.
func prompted(o estimateOptions, c *checkpoint.File, e *estimated) (*checkpoint.File, error) {
	in := checkpoint.InPrompt{Images: o.images.count, Width: o.images.size.width, Height: o.images.size.height, Sounds: o.sounds.count, Seconds: o.sounds.seconds}
	c, err := c.Prompted(in)
	switch {
	case err != nil && o.images.count > 0 && o.sounds.count > 0:
		return nil, cli.UsageError("estimate: --images %d --sounds %d: %w", o.images.count, o.sounds.count, err)
	case err != nil && o.sounds.count > 0:
		return nil, cli.UsageError("estimate: --sounds %d: %w", o.sounds.count, err)
	case err != nil:
		return nil, cli.UsageError("estimate: --images %d: %w", o.images.count, err)
	}
	e.Images, e.Sounds = o.images.count, o.sounds.count
	e.ImageTokens, e.sized = c.ImageTokens()
	e.SoundTokens = c.SoundTokens()
	what := "images"
	if e.Images == 0 {
		what = "sounds"
	}
	for _, f := range []struct {
		name   string
		tokens int
	}{{"seq", o.seq}, {"prefill-chunk", o.chunk}} {
		if all := e.ImageTokens + e.SoundTokens; f.tokens > 0 && f.tokens < all {
			return nil, cli.UsageError("estimate: --%s %d: the %s of each text take %d tokens: want that many or more", f.name, f.tokens, what, all)
		}
	}
	return c, nil
}

// computed returns the type in which PyTorch computes with a file's weights; 0 means the usual one,
// of two bytes.
func (o estimateOptions) computed(c *checkpoint.File) alloc.DType {
	if r, err := c.Report(); err == nil && !o.engine.isLlama() && r.Params.Count > 0 && r.Params.Bytes >= 4*alloc.Bytes(r.Params.Count) {
		return alloc.Float32
	}
	return 0
}

// ofInput returns the given flags that need an input.
func (o estimateOptions) ofInput() []string {
	var given []string
	for _, f := range []struct {
		name  string
		given bool
	}{{"--batch", o.batch > 0}, {"--seq", o.seq > 0}, {"--frames", o.frames > 0}, {"--serve", o.serve}} {
		if f.given {
			given = append(given, f.name)
		}
	}
	return given
}

// fileCache returns the configuration of the keys and values of a file's model.
func (o estimateOptions) fileCache(c *checkpoint.File) (estimate.KVConfig, error) {
	usual, err := c.Cache(max(o.batch, 1), 0)
	if _, unknown := c.Architecture(); err != nil && unknown == nil {
		return usual, cli.UsageError("estimate: leave --serve out: %w", err)
	}
	if err != nil || o.seq == 0 {
		return usual, err
	}
	cache, err := c.Cache(max(o.batch, 1), o.seq)
	if err != nil {
		err = cli.UsageError("estimate: --seq %d: %w", o.seq, err)
	}
	return cache, err
}

// fileInput returns the input that the flags give, or the usual one of the file.
func (o estimateOptions) fileInput(c *checkpoint.File) (estimate.Option, error) {
	texts, length := max(o.batch, 1), o.seq
	if cache, err := o.fileCache(c); o.serve && err == nil {
		texts, length = o.step(cache.ContextLength)
	}
	input, err := c.Input(texts, length)
	if errors.Is(err, checkpoint.ErrNoArchitecture) {
		err = fmt.Errorf("%w: put its config.json beside it", err)
	}
	return input, err
}

// ofKnown estimates a known model of images alone, of which there is no config.json.
func (o estimateOptions) ofKnown(m zoo.Model, options []estimate.Option) (*estimate.Report, error) {
	switch {
	case o.images.count > 0:
		return nil, cli.UsageError("estimate: %s reads no images with a text: leave --images out", m.Name)
	case o.sounds.count > 0:
		return nil, cli.UsageError("estimate: %s reads no sounds with a text: leave --sounds out", m.Name)
	case o.references > 0:
		return nil, cli.UsageError("estimate: %s makes images of no others: leave --reference-images out", m.Name)
	case o.frames > 0:
		return nil, cli.UsageError("estimate: %s makes no videos: leave --frames out", m.Name)
	case o.seq > 0 || o.serve || o.quantize:
		return nil, cli.UsageError("estimate: %s takes no text: leave --seq, --serve and --best-quantization out", m.Name)
	}
	usual, err := estimate.Model(m.Layers, m.Input, estimate.OnCPU()) // for its layers and shapes alone
	if err != nil {
		return nil, err
	}
	shape := slices.Clone(usual.Inputs[0])
	shape[0] = max(o.batch, 1)
	if o.image > 0 {
		if !m.Resizes() && shape[2] != o.image {
			return nil, cli.UsageError("estimate: %s reads no images of other sizes: leave --image out", m.Name)
		}
		shape[2], shape[3] = o.image, o.image
	}
	options = append([]estimate.Option{estimate.Name(m.Title), estimate.Precision(m.DType), estimate.InputShape(shape...)}, options...)
	trained, err := o.modelOptions(m.Loss(), func() (*estimate.Report, error) { return usual, nil })
	if err != nil {
		return nil, err
	}
	// The layers are made anew, since some can be used in one model only.
	again, err := zoo.ByName(m.Name)
	if err != nil {
		return nil, err
	}
	return estimate.Model(again.Layers, append(options, trained...)...)
}

// bestQuantization returns the report of the widest quantization that fits, or of the narrowest if none does,
// and notes its name in e.
func (o estimateOptions) bestQuantization(layers []nn.Layer, options []estimate.Option, e *estimated) (*estimate.Report, error) {
	q, report, ok, err := llamacpp.BestQuantization(layers, o.fits, options...)
	if err != nil || ok {
		e.Quantization = string(q)
		return report, err
	}
	narrowest := llamacpp.UsualQuantizations()[0]
	stored, err := narrowest.Stored(layers)
	if err != nil {
		return nil, err
	}
	e.Quantization = string(narrowest)
	return estimate.Model(layers, append(options, stored)...)
}

// largest searches for the largest batch, or the largest context length, that fits. It returns that
// report and notes the number in e. If not even 1 fits, it returns first, the report without a
// search.
func (o estimateOptions) largest(name string, options []estimate.Option, first *estimate.Report, e *estimated) (*estimate.Report, error) {
	n, most := &o.batch, &e.Batch
	if o.maxContext {
		n, most = &o.seq, &e.Context
	}
	var best *estimate.Report
	var failed error
	largest := last(maxSearched, func(number int) bool {
		if *n = number; o.maxContext && number < e.ImageTokens+e.SoundTokens {
			return true // the images and sounds alone take more
		}
		r, err := o.report(name, options, &estimated{})
		if failed = err; err != nil || !r.Fits(o.fits) {
			return false
		}
		best = r
		return true
	})
	if best == nil {
		return first, failed
	}
	*most = largest
	return best, nil
}

// fewestReplicas searches for the smallest number of replicas with which the model fits, and returns the
// report and that number. If no number fits, it is 0, and the report is that of maxReplicas.
func (o estimateOptions) fewestReplicas(name string, options []estimate.Option) (best *estimate.Report, n int, err error) {
	if _, err := shardingOf(o); err != nil {
		return nil, 0, err
	}
	fits := false
	tooFew := last(maxReplicas, func(number int) bool {
		if err != nil {
			return false
		}
		var r *estimate.Report
		o.replicas = number
		sharding, _ := shardingOf(o)
		if r, err = o.report(name, append(slices.Clone(options), sharding), &estimated{}); err != nil {
			return false
		}
		its := r.Fits(o.fits)
		if its || !fits {
			best, fits = r, its
		}
		return !its
	})
	if !fits {
		return best, 0, err
	}
	return best, tooFew + 1, err
}

// mostLayers returns the report with the most layers on the GPU that fit. If not even one layer
// fits, it is the report with one.
func (o estimateOptions) mostLayers(name string, options []estimate.Option, all *estimate.Report) (*estimate.Report, error) {
	report := all
	for n := all.ModelLayers; n > 0; n-- {
		var err error
		o.llama.layers = n
		if report, err = o.report(name, options, &estimated{}); err != nil || report.Fits(o.fits) {
			return report, err
		}
	}
	return report, nil
}

// last returns the largest number from 1 to most that something holds for; 0 if it does not hold for 1. It must hold
// for all smaller numbers too: few of them are asked.
func last(most int, holds func(n int) bool) int {
	low, high := 0, 1
	for high <= most && holds(high) {
		low, high = high, 2*high
	}
	high = min(high, most+1)
	for high-low > 1 {
		if mid := low + (high-low)/2; holds(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// maxReplicas is the largest number that is tried.
const maxReplicas = 1 << 13

// maxSearched is the largest batch or length that is tried.
const maxSearched = 1 << 24
