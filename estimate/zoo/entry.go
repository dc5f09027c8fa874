package zoo

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// entry makes a model when it is asked for.
type entry struct {
	name, title string
	params      int64
	source      string
	dtype       alloc.DType
	build       func() ([]tape.Layer, estimate.Option, *family.Transformer)
}

// image is a model of images, with the input that its weights were trained on.
func image(name, title string, params int64, layers func() []tape.Layer) entry {
	return entry{name, title, params, torchvision(name), alloc.Float32, func() ([]tape.Layer, estimate.Option, *family.Transformer) {
		return layers(), estimate.InputShape(1, 3, 224, 224), nil
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
func language(name, title string, params int64, source string, d alloc.DType, length int, t family.Transformer) entry {
	return entry{name, title, params, source, d, func() ([]tape.Layer, estimate.Option, *family.Transformer) {
		return t.Layers(), estimate.Tokens(1, length), &t
	}}
}
