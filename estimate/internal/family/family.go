// Package family has the model families that are known, one file for each or for a few that are kin: what their
// config.json and GGUF metadata are called and say, and how their layers are put together. Each stands in a table by
// registration; nothing else names a family.
//
// A decoder that differs little from Llama takes one file: a Family with the names that files have for it, a function
// that reads its settings, and in its style what it does in another way than Llama does. See arcee in llama.go.
//
// It never opens a file: package checkpoint finds them and gives their text.
package family

import (
	"maps"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Family is how models of a kind are put together, with modules named as in Hugging Face's transformers, and how files
// name them. A nil Family is Llama's.
type Family struct {
	Name  string // that people know it by
	Types []Type
	GGUF  []GGUF

	Role   role
	style  style                          // of a decoder
	Layers func(Transformer) []tape.Layer // in place of a decoder's
	Tower  func(c Transformer, width int) []tape.Layer
	Input  func(a *Model, batch, length int) []Input // in place of a text
	cache  func(Transformer) int                     // elements kept for a sequence, in place of keys and values
	broad  func(Transformer) int                     // elements of the keys of a token in blocks without a window, where the others have more or fewer

	Usual   int  // length of what it reads where nobody says it; 0 for that of texts
	Padding int  // of the learned positions, those before the first
	Images  bool // it reads images and no text
	Makes   bool // it makes images
	Patched bool // an image divides into whole patches
	Heads   headNorms
}

// Type is a model_type of a config.json, or a _class_name of what diffusers writes.
type Type struct {
	Name string
	Base string // the class without a head, meant where there are no architectures
	// Keys are the usual names of keys, by the names that the family has for them.
	Keys map[string]string
	Read func(*Config, *Model)

	Text bool // it can be the text of a model of images and text
	Part bool // it is a part of other models and none by itself
}

// GGUF is a general.architecture of a GGUF file.
type GGUF struct {
	Name   string
	With   Transformer // what the metadata leave unsaid
	Window int         // of so many layers one attends beyond the sliding window; 0 for families without a window
	Rotary bool        // the metadata tell how many elements of a head rotate
	Biases bool        // the tensors tell which projections have biases
	Mixer  bool        // there is neither attention nor an MLP
	Blocks bool        // heads of keys and values, and the MLP's width, may differ from block to block
	Read   func(*Metadata, *Model)
}

// role is what a family is for.
type role uint8

const (
	decoder role = iota // it writes a text, token by token
	Encoder             // it reads all at once and keeps no keys and values
	Seq2Seq             // an encoder and a decoder, which read two inputs
)

// headNorms are the norms of queries and keys of what makes images.
type headNorms uint8

const (
	FusedNorms      headNorms = iota
	Elementary                // in diffusers' own operations
	ElementaryIfAny           // likewise, where the QKNorm is set
)

var (
	families []*Family
	types    = map[string]known{}
	ggufs    = map[string]knownGGUF{}
)

type known struct {
	Type
	Family *Family
}

type knownGGUF struct {
	GGUF
	family *Family
}

// Register puts a family into the table.
func Register(f *Family) *Family {
	families = append(families, f)
	for _, t := range f.Types {
		types[t.Name] = known{t, f}
	}
	for _, g := range f.GGUF {
		ggufs[g.Name] = knownGGUF{g, f}
	}
	return f
}

// All returns the families.
func All() []*Family { return slices.Clone(families) }

// Types returns the types that are models by themselves, in order.
func Types() []string {
	return slices.Sorted(func(yield func(string) bool) {
		for name, t := range maps.All(types) {
			if !t.Part && !yield(name) {
				return
			}
		}
	})
}

// String is the name that people know the family by.
func (f *Family) String() string {
	if f == nil {
		return "Llama"
	}
	return f.Name
}

// Encoder reports whether the family reads all at once, so that it keeps no keys and
// values of earlier tokens.
func (f *Family) Encoder() bool { return f != nil && f.Role == Encoder }

// Seq2Seq reports whether the family has an encoder and a decoder, so that its layers read two inputs: what
// the encoder reads, and the decoder's tokens.
func (f *Family) Seq2Seq() bool { return f != nil && f.Role == Seq2Seq }

// OrLlama is the family, or Llama's for none.
func (f *Family) OrLlama() *Family {
	if f == nil {
		return &Family{Name: "Llama"}
	}
	return f
}
