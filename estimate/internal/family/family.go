// Package family has the model families, one file for each or for a few similar ones: what their
// config.json and GGUF metadata are called and say, and how their layers fit together. Decoders lists those of this
// package; encoder, seq2seq, vision and diffusion below have the others, and package families the table of all.
//
// A decoder that differs little from Llama needs one file: a Family with the names that files use
// for it, a function that reads its settings, and a style that says where it differs. See arcee in
// llama.go.
//
// The package opens no file: package checkpoint finds files and passes on their text.
package family

import (
	"maps"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Family says how the models of a family are built, with modules named as in Hugging Face's
// transformers, and how files name them. A nil Family is Llama's.
type Family struct {
	Name  string // as people know it
	Types []Type
	GGUF  []GGUF

	Role   role
	style  style                                     // of a decoder
	Layers func(Transformer) []tape.Layer            // replaces the decoder
	Input  func(a *Model, batch, length int) []Input // replaces a text
	// keeps returns what a block keeps of a sequence, in a family that has Layers of its own.
	keeps func(c Transformer, block int) []setting.CacheSpec
	whole bool // the cache keeps all tokens of blocks with a window
	// fullHeads returns the number of heads of keys and values and their size in blocks without a window, if the other
	// blocks have others.
	fullHeads func(Transformer) (heads, size int)
	// Tower returns the parts of a tower, which read each other's output; the last returns vectors of the text's width.
	// Those with parameters have names.
	Tower func(c Transformer, width int) []tape.Layer
	Look  func(Transformer) (Look, error) // what the processor makes of an image of the Prompt; nil means that the tower cannot run
	// Beside makes of a tower's vectors what blocks of the text read beside the text: the vectors first, and last a mask of
	// numbers. nil means that the vectors take the places of the tokens that stand for them.
	Beside func(t *tape.Tape, vectors tape.Tensor) []tape.Tensor
	Masked bool // where a tower ran, the text's attention gets a mask, as tokens of an image see each other
	Index  bool // the vectors are put in their places by the numbers of these (Tensor.index_put), not by a mask

	Usual   int  // usual length of the input; 0 means that of texts
	Padding int  // learned positions before the first token
	Images  bool // it reads images and no text
	Makes   bool // it makes images, or videos
	Scale   int  // pixels along a side that become one of the latent images it makes; 0 means 8
	Refers  bool // it also reads images that others refer to, as positions beside those of the image that it makes
	Rate    int  // frames that become one of the latent videos it makes; 0 means that it makes images
	Frames  int  // usual latent frames of these videos
	Patched bool // only whole patches of an image are read
	Heads   headNorms
}

// Type is a model_type of a config.json, or a _class_name of diffusers.
type Type struct {
	Name string
	Base string // the class without a head, which a file without architectures means
	// Keys maps the family's own names of keys to the usual ones.
	Keys map[string]string
	Read func(*Config, *Model)

	PerLayer bool // Read reads per_layer_config
	Text     bool // it can be the text part of a model of images and text
	Part     bool // it is only ever part of another model
}

// GGUF is an architecture of GGUF files (general.architecture).
type GGUF struct {
	Name   string
	With   Transformer // what the metadata do not say
	Window int         // one of this many layers has no sliding window; 0 for families without a window
	Rotary bool        // the metadata say how many elements of a head rotate
	Biases bool        // the tensors show which projections have biases
	Mixer  bool        // there is neither attention nor an MLP
	Blocks bool        // KV heads and the MLP's width may differ between blocks
	Heads  bool        // with Blocks: query heads too
	Read   func(*Metadata, *Model)
}

// role says what a family does.
type role uint8

const (
	decoder role = iota // it writes a text, token by token
	Encoder             // it reads the whole input at once and caches no keys and values
	Seq2Seq             // an encoder and a decoder, which read two inputs
)

// headNorms says which norms of queries and keys an image model has.
type headNorms uint8

const (
	FusedNorms      headNorms = iota
	Elementary                // in diffusers' own operations
	ElementaryIfAny           // the same, if QKNorm is set
)

// Table finds families by the names that files have for them. Package families has the table of all.
type Table struct {
	families []*Family
	types    map[string]known
	ggufs    map[string]knownGGUF
}

type known struct {
	Type
	Family *Family
}

type knownGGUF struct {
	GGUF
	family *Family
}

// NewTable returns the table of these families.
func NewTable(families ...*Family) *Table {
	t := &Table{families: families, types: map[string]known{}, ggufs: map[string]knownGGUF{}}
	for _, f := range families {
		for _, of := range f.Types {
			t.types[of.Name] = known{of, f}
		}
		for _, g := range f.GGUF {
			t.ggufs[g.Name] = knownGGUF{g, f}
		}
	}
	return t
}

// All returns the families.
func (t *Table) All() []*Family { return slices.Clone(t.families) }

// Types returns the sorted types of whole models.
func (t *Table) Types() []string {
	return slices.Sorted(func(yield func(string) bool) {
		for name, t := range maps.All(t.types) {
			if !t.Part && !yield(name) {
				return
			}
		}
	})
}

// String returns the family's name as people know it.
func (f *Family) String() string {
	if f == nil {
		return "Llama"
	}
	return f.Name
}

// Encoder reports whether the family reads its whole input at once, so that it caches no keys and
// values.
func (f *Family) Encoder() bool { return f != nil && f.Role == Encoder }

// Seq2Seq reports whether the family has an encoder and a decoder. Its layers then read two inputs:
// the encoder's, and the decoder's tokens.
func (f *Family) Seq2Seq() bool { return f != nil && f.Role == Seq2Seq }

// OrLlama returns the family, or Llama's if it is nil.
func (f *Family) OrLlama() *Family {
	if f == nil {
		return &Family{Name: "Llama"}
	}
	return f
}
