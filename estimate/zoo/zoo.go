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

var entries = slices.Concat(vggs, resnets, others, encoders, gpts, llamas, qwens)

// Names lists the models' names, those of a family together.
func Names() []string {
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.name
	}
	return names
}

// ByName returns a model. Upper case is read as lower case, and "-", "_" and "." make no
// difference: "Llama3-8B" is "llama-3-8b". The model is the caller's own. The error of an
// unknown name suggests similar ones.
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
