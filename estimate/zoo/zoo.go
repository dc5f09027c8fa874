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
	if similar := Similar(name); len(similar) > 0 {
		return Model{}, fmt.Errorf("zoo: no model is named %q: is it %s?", name, strings.Join(similar, ", "))
	}
	return Model{}, fmt.Errorf("zoo: no model is named %q: the names are %s", name, strings.Join(Names(), ", "))
}

// Similar returns the names, at most five, that somebody may have meant by another: those that
// differ by a letter or two, or that contain it or are contained in it, as "llama-3-8b" is in
// "meta-llama/Meta-Llama-3-8B". The nearest come first.
func Similar(name string) []string {
	key := normal(name[strings.LastIndexByte(name, '/')+1:])
	if len(key) < 3 || len(key) > 64 {
		return nil
	}
	type candidate struct {
		name string
		far  int
	}
	var found []candidate
	for _, e := range entries {
		other := normal(e.name)
		far := distance(key, other)
		if within := strings.Contains(key, other) || strings.Contains(other, key); within || far <= 2 && 2*far < len(key) {
			found = append(found, candidate{e.name, far})
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return a.far - b.far })
	names := make([]string, min(5, len(found)))
	for i := range names {
		names[i] = found[i].name
	}
	return names
}

// distance is the number of letters to put in, take out or replace that make one text of
// the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := corner
			if a[i] != b[j] {
				change++
			}
			corner = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
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
