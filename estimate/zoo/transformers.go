package zoo

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/families"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/vision"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/strictjson"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

func vits() []entry {
	return []entry{
		vit("vit-b-16", "ViT-B/16", 86567656, 768, 12, 12).at("google/vit-base-patch16-224"),
		vit("vit-l-16", "ViT-L/16", 304326632, 1024, 24, 16).at("google/vit-large-patch16-224"),
	}
}

func vit(name, title string, params int64, hidden, blocks, heads int) entry {
	t := family.Transformer{Family: vision.ViT, Hidden: hidden, Blocks: blocks, Heads: heads, Head: family.Head{Classes: 1000}}
	return entry{name, title, params, torchvision(strings.ReplaceAll(name, "-", "_")), alloc.Float32, func() ([]tape.Layer, estimate.Option, *family.Transformer) {
		return t.Layers(), estimate.InputShape(1, 3, 224, 224), &t
	}, nil, nil}
}

// swinBlock is attention within windows and an MLP, each added to what it reads (arXiv:2103.14030, figure 3).
func swinBlock(channels int, shifted, drop bool) tape.Layer {
	attention := layer.WindowAttention{Hidden: channels, Heads: channels / 32, Window: 7, Shifted: shifted, Packed: true, Plain: true}
	mlp := tape.Sequential{
		layer.Linear{In: channels, Out: 4 * channels}, layer.GELU{}, tape.Identity{},
		layer.Linear{In: 4 * channels, Out: channels}, tape.Identity{},
	}
	sum := func(norm, name string, l tape.Layer) tape.Layer {
		return tape.Inline(tape.Residual{Body: tape.Sequential{
			tape.As(norm, layer.LayerNorm{Size: channels}), tape.As(name, l), tape.As("stochastic_depth", tape.If(drop, layer.StochasticDepth{})),
		}})
	}
	return tape.Sequential{sum("norm1", "attn", attention), sum("norm2", "mlp", mlp)}
}

// swinTiny follows arXiv:2103.14030, table 7.
func swinTiny() []tape.Layer {
	channels := 96
	features := tape.Sequential{tape.Sequential{
		layer.Conv2d{In: 3, Out: channels, Kernel: 4, Stride: 4}, tape.Permute{0, 2, 3, 1}, layer.LayerNorm{Size: channels},
	}}
	for i, blocks := range []int{2, 2, 6, 2} {
		if i > 0 {
			features, channels = append(features, layer.PatchMerging{Channels: channels}), 2*channels
		}
		var stage tape.Sequential
		for b := range blocks {
			stage = append(stage, swinBlock(channels, b%2 == 1, i > 0 || b > 0))
		}
		features = append(features, stage)
	}
	return []tape.Layer{
		tape.As("features", features),
		tape.As("norm", layer.LayerNorm{Size: channels}),
		tape.As("permute", tape.Permute{0, 3, 1, 2}),
		tape.As("avgpool", layer.AdaptiveAvgPool(1)),
		tape.As("flatten", layer.Flatten{}),
		tape.As("head", layer.Linear{In: channels, Out: 1000}),
	}
}

// modelsJSON has the settings of models, as far as they bear on sizes, by the repository at huggingface.co whose config.json
// has them, with the number of parameters that count.py counted, or diffusers did. testdata/others.json has more, for tests.
// The program carries them compressed: they would be 90 kB more.
//
//go:generate gzip -9 -n -k -f models.json
//go:embed models.json.gz
var modelsJSON []byte

// known is a model of models.json.
type known struct {
	Params int64
	Config json.RawMessage
	DType  string
	Name   string   // "" means the repository's name, in lower case
	Also   []string // repositories of models with the same layers
}

// published are the entries of models.json.
var published = sync.OnceValue(func() []entry {
	var file map[string]json.RawMessage
	if err := strictjson.Unzip(modelsJSON, &file); err != nil {
		panic("models.json: " + err.Error()) // it is a part of the program
	}
	delete(file, "transformers") // its version
	var all []entry
	for _, repository := range slices.Sorted(maps.Keys(file)) {
		var k known
		if err := json.Unmarshal(file[repository], &k); err != nil {
			panic("models.json: " + repository + ": " + err.Error())
		}
		all = append(all, k.entry(repository))
	}
	return all
})

// entry makes the model when it is asked for.
func (k known) entry(repository string) entry {
	also := k.Also
	if !strings.Contains(repository, " ") { // after which is a part of it, such as "unet"
		also = append(also, repository)
	}
	title := repository[strings.LastIndexByte(repository, '/')+1:]
	d, err := alloc.ParseDType(k.DType)
	if err != nil {
		panic("models.json: " + repository + ": " + err.Error())
	}
	e := entry{
		name: strings.ToLower(title), title: title, params: k.Params, dtype: d, also: also,
		source: "huggingface.co/" + repository + ": its config.json, counted by transformers or diffusers",
	}
	if k.Name != "" {
		e.name = k.Name
	}
	e.config = slices.Concat([]byte(`{"torch_dtype": "`+k.DType+`", `), k.Config[1:])
	e.build = func() ([]tape.Layer, estimate.Option, *family.Transformer) {
		m := k.model(repository)
		inputs := family.Given(m.Inputs(1, 0))
		if m.Images != nil {
			return m.Layers(), inputs, nil
		}
		return m.Layers(), inputs, &m.Transformer
	}
	return e
}

// model returns the model that the settings describe.
func (k known) model(repository string) family.Model {
	var of struct {
		Type  string `json:"model_type"`
		Class string `json:"_class_name"`
	}
	err := json.Unmarshal(k.Config, &of)
	m := family.Model{}
	if err == nil {
		m, err = families.Table().ReadConfig(of.Type+of.Class, k.Config)
	}
	if err != nil {
		panic(fmt.Sprintf("models.json: %s: %v", repository, err))
	}
	return m
}
