// Package zoo has well-known models as layers of package estimate. It has no weights and never downloads any:
// models in files are those of package checkpoint.
//
//	m, err := zoo.ByName("resnet50")
//	r, err := estimate.Model(m.Layers, m.Input, estimate.Train("adam"))
//
// Modules have the names that torchvision and transformers give them, and each
// model has exactly the published number of parameters. Each call builds a new
// model, so that a caller may change them; all functions may be called from
// several goroutines.
package zoo

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/llamacpp"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
	"github.com/gpumemtrack/gpumemtrack/estimate/serving"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// Model is a known model.
type Model struct {
	Name   string     // as ByName takes it, such as "resnet50"
	Title  string     // as people write it, such as "ResNet-50"; of a model with the layers of another, its own
	Layers []nn.Layer // for estimate.Model
	// Input is the usual input with a batch of one.
	Input estimate.Option
	// Params is the published number of parameters.
	Params int64
	// DType is the element type in which the weights are published; where they are packed, that of the rest.
	DType alloc.DType
	// Config is the config.json that the layers are made of, for checkpoint.ParseConfig; nil for models that are written here.
	Config []byte

	transformer *family.Transformer // what the layers were made of; nil for other models
}

// Loss returns the loss with which transformers trains the model, for estimate.WithLoss, and nil
// for models that have none.
func (m Model) Loss() nn.Layer {
	if m.transformer == nil {
		return nil
	}
	return layer.PublicLoss(m.transformer.Loss())
}

// Cache describes the model's key/value cache for batch sequences of context tokens each, for
// estimate.KVCache and as an option. Set its DType if it is not float16. It is an error if the
// model writes no text, and so has no cache, and so are more tokens than it has learned positions for.
func (m Model) Cache(batch, context int) (estimate.KVConfig, error) {
	if m.transformer == nil || m.transformer.Family.Encoder() {
		return estimate.KVConfig{}, fmt.Errorf("zoo: key/value cache of %s: it writes no text and has none", m.Name)
	}
	if most := m.transformer.Positions; most > 0 && context > most {
		return estimate.KVConfig{}, fmt.Errorf("zoo: %s has %d positions, too few for %d tokens", m.Name, most, context)
	}
	return estimate.KVConfig(m.transformer.Cache(batch, context, 0)), nil
}

// CacheSpecs describes what each layer of the model keeps of a sequence, for the planners of package serving. It is an error
// if the model writes no text, and so has no cache.
func (m Model) CacheSpecs() ([]serving.CacheSpec, error) {
	if _, err := m.Cache(1, 1); err != nil {
		return nil, err
	}
	specs := m.transformer.CacheSpecs()
	all := make([]serving.CacheSpec, len(specs))
	for i, s := range specs {
		all[i] = serving.CacheSpec(s)
	}
	return all, nil
}

// StepWidth returns how many elements each token of a step takes at most in an engine whose kernels are fused, such as vLLM, on
// one of tensor GPUs that share each layer: the residual stream, and what the widest part of a layer holds. Towers for images
// are not counted. The errors are those of CacheSpecs.
func (m Model) StepWidth(tensor int) (int64, error) {
	if _, err := m.Cache(1, 1); err != nil {
		return 0, err
	}
	return m.transformer.StepWidth(tensor), nil
}

// WholeImages reports whether the tokens of an image attend to each other in both directions, as in the larger models of Gemma 4:
// engines run such an image in one step.
func (m Model) WholeImages() bool { return m.transformer != nil && m.transformer.WholeImages }

// ContextLength returns the number of tokens of a text for which the model was made; 0 if it is not known, or if the model reads
// no text.
func (m Model) ContextLength() int {
	if m.transformer == nil {
		return 0
	}
	return (&family.Model{Transformer: *m.transformer}).ContextLength()
}

// HasTowers reports whether the model reads images or sounds with a text, and so has a tower for them.
func (m Model) HasTowers() bool {
	return m.transformer != nil && (m.transformer.Vision != nil || m.transformer.Audio != nil)
}

// Resizes reports whether the model reads images of other sizes than its usual input.
func (m Model) Resizes() bool { return m.transformer == nil }

// Served returns the option with which llama.cpp serves the model, with keys and values as Cache describes them and the
// weights in float16. The error says what is wrong with the settings, or that llama.cpp does not serve this model.
func (m Model) Served(cache estimate.KVConfig, by llamacpp.Server) (estimate.Option, error) {
	if m.transformer == nil {
		return nil, fmt.Errorf("zoo: %s served by llama.cpp: it writes no text", m.Name)
	}
	stored, err := llamacpp.Quantization("F16").Stored(m.Layers)
	if err != nil {
		return nil, err
	}
	var c setting.Config
	stored.Apply(&c)
	serve, err := m.transformer.Serve(family.Server(by), setting.KVConfig(cache), *c.Sizes)
	if err != nil {
		return nil, err
	}
	return setting.Func(serve), nil
}

// entries are the models that are known.
var entries = sync.OnceValue(func() []entry {
	all := slices.Concat(vggs(), resnets(), others(), vits(), published())
	slices.SortStableFunc(all, func(a, b entry) int {
		return cmp.Or(compareNames(seriesOf(a.name), seriesOf(b.name)), cmp.Compare(a.params, b.params), compareNames(a.name, b.name))
	})
	return all
})

// sizeWords are words in names that say how large a model is among those that were published together.
var sizeWords = []string{"tiny", "mini", "small", "base", "medium", "large", "xl", "xxl", "xxlarge", "huge", "giant"}

// seriesOf is a name without what tells the sizes of one series of models apart.
func seriesOf(name string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(name, "-"), func(w string) bool {
		return sized().MatchString(w) || slices.Contains(sizeWords, w)
	}), "-")
}

// compareNames compares names by their letters, and numbers in them by their values.
func compareNames(a, b string) int {
	x, y := parts().FindAllString(a, -1), parts().FindAllString(b, -1)
	return slices.CompareFunc(x, y, func(p, q string) int {
		m, errM := strconv.ParseFloat(p, 64)
		n, errN := strconv.ParseFloat(q, 64)
		if errM == nil && errN == nil {
			return cmp.Compare(m, n)
		}
		return cmp.Compare(p, q)
	})
}

// parts are the numbers in a name and what stands between them.
var parts = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\d+(\.\d+)?|[^\d]+`) })

// Names lists the models' names: those of a series together, the smallest first.
func Names() []string {
	names := make([]string, len(entries()))
	for i, e := range entries() {
		names[i] = e.name
	}
	return names
}

// ByName returns a model. It takes names as people type them: in any case and with any separators, with the
// organization before it, and of a model that was tuned further without changing its sizes:
// "meta-llama/Meta-Llama-3-8B-Instruct" and "llama3:8b" are "llama-3-8b". The model is the caller's own. The error
// of an unknown name suggests similar ones.
func ByName(name string) (Model, error) {
	if e, ok := find(name); ok {
		layers, input, transformer := e.build()
		return Model{
			Name: e.name, Title: e.titleOf(name), Layers: layer.Public(layers), Input: input,
			Params: e.params, DType: e.dtype, Config: e.config, transformer: transformer,
		}, nil
	}
	if similar := Similar(name); len(similar) > 0 {
		return Model{}, fmt.Errorf("zoo: no model is named %q: is it %s?", name, strings.Join(similar, ", "))
	}
	return Model{}, fmt.Errorf("zoo: no model is named %q, nor alike: Names lists those that are known", name)
}

func others() []entry {
	return []entry{
		image("densenet121", "DenseNet-121", 7978856, densenet(6, 12, 24, 16)),
		image("densenet201", "DenseNet-201", 20013928, densenet(6, 12, 48, 32)),
		image("mobilenet_v2", "MobileNetV2", 3504872, mobilenetV2),
		image("mobilenet_v3_large", "MobileNetV3 Large", 5483032, mobilenetV3Large),
		image("efficientnet_b0", "EfficientNet-B0", 5288548, efficientnetB0),
		image("swin_t", "Swin Tiny", 28288354, swinTiny),
		image("convnext_tiny", "ConvNeXt Tiny", 28589128, convNeXtTiny),
	}
}

// entry makes a model when it is asked for.
type entry struct {
	name, title string
	params      int64
	source      string
	dtype       alloc.DType
	build       func() ([]tape.Layer, estimate.Option, *family.Transformer)
	config      []byte   // the text that it is made from; nil if there is none
	also        []string // other names: repositories at huggingface.co of models whose layers are the same
}

// at is the entry with the repositories that have its layers.
func (e entry) at(repositories ...string) entry {
	e.also = repositories
	return e
}

// image is a model of images, with the input that its weights were trained on.
func image(name, title string, params int64, layers func() []tape.Layer) entry {
	return entry{name, title, params, torchvision(name), alloc.Float32, func() ([]tape.Layer, estimate.Option, *family.Transformer) {
		return layers(), estimate.InputShape(1, 3, 224, 224), nil
	}, nil, nil}
}

// torchvision is where it publishes the parameters of a model.
func torchvision(name string) string {
	return "torchvision 0.29.2, " + name + ": num_params of its IMAGENET1K_V1 weights, as in docs.pytorch.org/vision/stable/models.html"
}

// find returns the entry that a name means: of that very name, else of one that differs by words of
// tuning alone. If these are several of different sizes, the name means none.
func find(name string) (entry, bool) {
	for _, reduced := range []func(name string) string{normal, untuned} {
		key := reduced(name)
		found := slices.DeleteFunc(slices.Clone(entries()), func(e entry) bool {
			return reduced(e.name) != key && !slices.ContainsFunc(e.also, func(other string) bool { return reduced(other) == key })
		})
		if len(found) > 0 && !slices.ContainsFunc(found, func(e entry) bool { return e.params != found[0].params }) {
			return found[0], true
		}
	}
	return entry{}, false
}

// titleOf returns the title of the model that a name means: of one whose layers are those of the entry, as Qwen3.6 has those of
// Qwen3.5, that of its own repository.
func (e entry) titleOf(name string) string {
	for _, reduced := range []func(name string) string{normal, untuned} {
		key := reduced(name)
		if key == reduced(e.name) || key == reduced(e.title) {
			break
		}
		for _, other := range e.also {
			if reduced(other) == key {
				return other[strings.LastIndexByte(other, '/')+1:]
			}
		}
	}
	return e.title
}

// words of a name are in lower case, and without the organization before it.
func words(name string) []string {
	name = strings.ToLower(name[strings.LastIndexByte(name, '/')+1:])
	return strings.FieldsFunc(name, func(r rune) bool { return strings.ContainsRune("-_.: ", r) })
}

// normal is a name without its organization, upper case and separators.
func normal(name string) string { return strings.Join(words(name), "") }

// tunings are words in names that say how a model was trained, or who published it. The model
// without them has the same layers.
var tunings = []string{"instruct", "it", "pt", "chat", "hf", "meta", "thinking", "coder", "math"}

// sized is a word that says how many parameters a model has, beside which "base" is no size.
var sized = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(\d+x)?\d+(\.\d+)?[bm]$`) })

// untuned is a name as normal has it, without words of tuning and without the date of a version, such as 2507.
func untuned(name string) string {
	all := words(name)
	hasSize := slices.ContainsFunc(all, sized().MatchString)
	return strings.Join(slices.DeleteFunc(all, func(w string) bool {
		return slices.Contains(tunings, w) || w == "base" && hasSize || len(w) == 4 && strings.Trim(w, "0123456789") == ""
	}), "")
}

// Similar returns the names, at most five and also those of repositories with the same layers, that another name may have meant: those that
// differ by a letter or two, or that contain it or are contained in it, as "qwen2.5-7b" is in
// "Qwen/Qwen2.5-7B-Instruct-AWQ". These come first, and the nearest before others.
func Similar(name string) []string {
	key := normal(name)
	if len(key) < 2 || len(key) > 64 {
		return nil
	}
	type candidate struct {
		name               string
		relation, distance int
	}
	var found []candidate
	for _, e := range entries() {
		best := candidate{relation: 3}
		for _, called := range append([]string{e.name}, e.also...) {
			other := normal(called)
			far := text.Distance(key, other)
			relation := 2 // of a letter or two
			switch {
			case strings.HasPrefix(key, other) || strings.HasPrefix(other, key):
				relation = 0
			case len(key) > 2 && (strings.Contains(key, other) || strings.Contains(other, key)):
				relation = 1
			case far > 2 || 2*far >= len(key):
				continue
			}
			if relation < best.relation {
				best = candidate{strings.ToLower(called[strings.LastIndexByte(called, '/')+1:]), relation, far}
			}
		}
		if best.relation < 3 {
			found = append(found, best)
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Or(a.relation-b.relation, a.distance-b.distance) })
	names := make([]string, min(5, len(found)))
	for i := range names {
		names[i] = found[i].name
	}
	return names
}
