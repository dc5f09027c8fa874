package checkpoint

import (
	"errors"
	"fmt"
	"math"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/families"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/jsontext"
)

// architecture looks the model up among the families that are known.
func (g *ggufFile) architecture() (architecture, error) {
	name := g.text("general.architecture")
	h := ggufMetadata{g, make(map[string]alloc.Shape, len(g.tensors))}
	for _, t := range g.tensors {
		h.shapes[t.Name] = t.Shape
	}
	m, err := families.Table().ReadGGUF(name, h)
	wrong := (*family.Error)(nil)
	switch {
	case err == nil:
		return architecture{Model: m}, nil
	case errors.As(err, &wrong):
		return architecture{}, settingsError(g.file, wrong)
	case !errors.Is(err, family.ErrUnknown):
		return architecture{}, err
	}
	a := architecture{Model: family.Model{Type: name}}
	if alone, ok := family.GGUFCacheAlone(name, h); ok {
		a = architecture{Model: alone, cache: true}
	}
	return a, &fileError{file: g.file, where: `metadata key "general.architecture"`,
		reason: fmt.Sprintf("%q is not a known architecture", jsontext.Shorten(name)), err: ErrUnknownArchitecture}
}

// ggufMetadata gives families access to the metadata of a GGUF file.
type ggufMetadata struct {
	*ggufFile
	shapes map[string]alloc.Shape
}

// Whole returns a number of the metadata.
func (h ggufMetadata) Whole(key string, without int) (int, error) { return h.whole(key, without) }

// Numbers returns an array of numbers, or a single number as an array; booleans are 0 and 1.
func (h ggufMetadata) Numbers(key string) []int {
	v := h.metadata[key]
	if v.kind == ggufFloat32 || v.kind == ggufFloat64 {
		return nil
	}
	all := make([]int, len(v.words))
	for i, word := range v.words {
		all[i] = int(min(word, math.MaxInt32))
	}
	return all
}

// Flag returns a boolean of the metadata, or without if there is none.
func (h ggufMetadata) Flag(key string, without bool) bool {
	if v, ok := h.metadata[key]; ok && v.kind == ggufBool && len(v.words) == 1 {
		return v.words[0] != 0
	}
	return without
}

// Shape returns the shape of a tensor.
func (h ggufMetadata) Shape(tensor string) (alloc.Shape, bool) {
	s, ok := h.shapes[tensor]
	return s, ok
}

// Tokens returns the number of tokens that the tokenizer has.
func (h ggufMetadata) Tokens() int {
	return int(min(h.metadata["tokenizer.ggml.tokens"].length, math.MaxInt32))
}
