package estimate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Layers returns the model's layers, ready for Model. The error is
// ErrNoArchitecture if the files hold tensors only, ErrUnknownArchitecture
// if the architecture is none that this package builds, and a *FileError if its
// settings are wrong.
func (c *Checkpoint) Layers() ([]Layer, error) {
	if _, err := c.Architecture(); err != nil {
		return nil, err
	}
	return c.architecture.layers(), nil
}

// Cache describes the key/value cache of the model for so many sequences of so many
// tokens, for KVCache and WithKVCache; set its DType if it is not float16. The errors
// are those of Layers, one for BERT and ViT, which have no cache, and one for more
// tokens than a model with learned positions has.
func (c *Checkpoint) Cache(batch, context int) (CacheConfig, error) {
	if _, err := c.Architecture(); err != nil {
		return CacheConfig{}, err
	}
	if a := c.architecture; a.Family == BERT || a.Family == ViT {
		return CacheConfig{}, fmt.Errorf("estimate: key/value cache of a %s model: it is an encoder and has none", a.family)
	} else if a.Positions > 0 && context > a.Positions {
		return CacheConfig{}, fmt.Errorf("estimate: key/value cache of %d tokens: the model has %d positions", context, a.Positions)
	}
	return c.architecture.Cache(batch, context, 0), nil
}

// usualTokens is the length of a text where nobody says it.
const usualTokens = 512

// Input is what the model reads: so many texts of so many tokens, 0 for the usual 512 or as
// many as the model has positions; for ViT images of its size, and the length must be 0.
// The errors are those of Layers.
func (c *Checkpoint) Input(batch, length int) (Option, error) {
	if _, err := c.Architecture(); err != nil {
		return nil, err
	}
	a := c.architecture
	if a.Family != ViT {
		if length == 0 {
			length = usualTokens
			if a.Positions > 0 {
				length = min(length, a.Positions)
			}
		}
		return Tokens(batch, length), nil
	}
	if length != 0 {
		return nil, fmt.Errorf("estimate: input of %d tokens: a %s model reads images", length, a.family)
	}
	return Input(batch, a.Channels, a.Image, a.Image), nil
}

// Report is Model of the files. Without options the element type is the one that most
// of the weights have. Where the architecture is not known the report tells the
// parameters only, and says so; an Input is an error then.
//
// Weights are counted as they are stored, quantized ones too, unless the options give them a type
// or shard them; a note of the report says which.
func (c *Checkpoint) Report(opts ...Option) (*Report, error) {
	layers, err := c.Layers()
	untold := errors.Is(err, ErrNoArchitecture) || errors.Is(err, ErrUnknownArchitecture)
	switch {
	case untold:
		layers = c.stored()
	case err != nil:
		return nil, err
	}
	r, err := Model(layers, slices.Concat([]Option{Name(c.Name)}, c.types(), opts)...)
	if err != nil {
		return nil, err
	}
	if untold {
		r.Notes = append(r.Notes, fmt.Sprintf("parameters only: %v", c.architectureErr))
	}
	if len(c.tensors) > 0 {
		c.weighAsStored(r, opts)
	} else if q := c.architecture.quantized; q != "" {
		r.Notes = append(r.Notes, fmt.Sprintf("the weights are quantized (%s), and counted as if they were not: open the weights themselves", q))
	}
	return r, nil
}

// types are the options that the files give.
func (c *Checkpoint) types() []Option {
	d := c.architecture.dtype
	switch totals := c.Totals(); {
	case c.architecture.quantized != "": // what is stored is packed
		d = or(d, alloc.Float16)
	case len(totals) > 0: // GGUF's quantized weights are computed with in float16
		d = or(totals[0].Encoding.DType, alloc.Float16)
	}
	switch d {
	case 0:
		return nil
	case alloc.Float16, alloc.BFloat16, alloc.Float32, alloc.Float64:
		return []Option{DType(d)}
	}
	return []Option{DType(alloc.Float16), Weights(d)}
}

// weighAsStored puts the stored size of the weights into a report for inference.
func (c *Checkpoint) weighAsStored(r *Report, opts []Option) {
	var given config
	for _, o := range opts {
		if o != nil {
			o(&given)
		}
	}
	stored := alloc.Bytes(0)
	for _, t := range c.tensors {
		if !t.IsBuffer() {
			stored += t.Bytes
		}
	}
	more := stored - r.Params.Bytes
	switch {
	case given.weights != 0 || given.sharding != (Sharding{}) || more == 0:
		return
	case c.architecture.quantized != "": // and packed, so that numbers cannot be compared
	case r.Params.Count != c.Parameters():
		r.Notes = append(r.Notes, fmt.Sprintf("the files hold %d parameters in %v, the layers have %d", c.Parameters(), stored, r.Params.Count))
		return
	}
	r.Params.Bytes = stored
	r.Inference.Weights += more
	if r.Inference.Peak > 0 {
		r.Inference.Peak += more
	}
	r.Notes = append(r.Notes, fmt.Sprintf("inference counts the weights as they are stored, %v", stored))
}

// stored returns layers that have the tensors and nothing else, one for each module
// that the tensors' names tell.
func (c *Checkpoint) stored() []Layer {
	var layers []Layer
	at := map[string]int{}
	for _, t := range c.tensors {
		module, name := "", t.Name
		if dot := strings.LastIndexByte(t.Name, '.'); dot >= 0 {
			module, name = t.Name[:dot], t.Name[dot+1:]
		}
		i, ok := at[module]
		if !ok {
			i = len(layers)
			at[module] = i
			layers = append(layers, Named{module, &storedModule{}})
		}
		m := layers[i].(Named).Layer.(*storedModule)
		m.params = append(m.params, Param{Name: name, Shape: t.Shape, DType: t.Encoding.DType, Buffer: t.IsBuffer()})
	}
	return layers
}

// storedModule is a module of which only the tensors are known.
type storedModule struct{ params []Param }

// Kind names the row.
func (*storedModule) Kind() string { return "Stored" }

// Declare implements Layer.
func (m *storedModule) Declare(d *Declaration) {
	for _, p := range m.params {
		d.Add(p)
	}
}

// Forward implements Layer.
func (*storedModule) Forward(t *Tape, _ Tensor) (Tensor, error) {
	return Tensor{}, t.Errorf("only its tensors are known: give no Input")
}
