package zoo

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// Model is a known model.
type Model struct {
	Name   string           // as ByName takes it, such as "resnet50"
	Title  string           // as people write it, such as "ResNet-50"
	Layers []estimate.Layer // for estimate.Model
	// Input is the usual input with a batch of one.
	Input estimate.Option
	// Params is the published number of parameters, and Source where it is
	// published.
	Params int64
	Source string
	// DType is the element type in which the weights are published.
	DType alloc.DType
	// Transformer is what the layers were made of; nil for other models.
	Transformer *estimate.Transformer
}

// entry makes a model when it is asked for.
type entry struct {
	name, title string
	params      int64
	source      string
	dtype       alloc.DType
	build       func() ([]estimate.Layer, estimate.Option, *estimate.Transformer)
}

var entries = slices.Concat(vggs, resnets, others, encoders, gpts, llamas, qwens)

// Names lists the models' names, those of a family together.
func Names() []string {
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.name
	}
	return names
}

// ByName returns a model. Upper case is read as lower case, and "-", "_" and "."
// make no difference: "Llama3-8B" is "llama-3-8b". The model is the caller's own.
func ByName(name string) (Model, error) {
	key := normal(name)
	for _, e := range entries {
		if normal(e.name) == key {
			layers, input, transformer := e.build()
			return Model{
				Name: e.name, Title: e.title, Layers: layers, Input: input,
				Params: e.params, Source: e.source, DType: e.dtype, Transformer: transformer,
			}, nil
		}
	}
	return Model{}, fmt.Errorf("zoo: no model is named %q: the names are %s", name, strings.Join(Names(), ", "))
}

func normal(name string) string {
	return strings.NewReplacer("-", "", "_", "", ".", "").Replace(strings.ToLower(name))
}

// image is a model of images, with the input that its weights were trained on.
func image(name, title string, params int64, layers func() []estimate.Layer) entry {
	return entry{name, title, params, torchvision(name), alloc.Float32, func() ([]estimate.Layer, estimate.Option, *estimate.Transformer) {
		return layers(), estimate.Input(1, 3, 224, 224), nil
	}}
}

// torchvision is where it publishes the parameters of a model.
func torchvision(name string) string {
	return "torchvision 0.29.2, " + name + ": num_params of its IMAGENET1K_V1 weights, as in docs.pytorch.org/vision/stable/models.html"
}

// kerasHub is where KerasHub publishes them.
func kerasHub(family, preset string) string {
	return fmt.Sprintf("github.com/keras-team/keras-hub, keras_hub/src/models/%s/%[1]s_presets.py, %s: params", family, preset)
}

// huggingFace is where the parameters of a repository's safetensors files are
// counted.
func huggingFace(repository, more string) string {
	return "huggingface.co/api/models/" + repository + ": safetensors.total" + more
}

// language is a model of tokens.
func language(name, title string, params int64, source string, d alloc.DType, length int, t estimate.Transformer) entry {
	return entry{name, title, params, source, d, func() ([]estimate.Layer, estimate.Option, *estimate.Transformer) {
		return t.Layers(), estimate.Tokens(1, length), &t
	}}
}
