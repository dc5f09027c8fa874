// Package layer knows what layers do: which parameters they declare, which operations they record
// on a tape, and what these keep for the backward pass. From makes such layers from the values of
// package nn. It knows no model; package family builds models from it.
package layer

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// From converts a program's layers to layers that record on a tape. A layer from Share stays one
// layer wherever it stands.
func From(layers []nn.Layer) []tape.Layer { return maker{}.all(layers) }

// Public converts layers back to those of package nn, for models that packages zoo and checkpoint
// return. A program can see whether their loss is NextToken.
func Public(layers []tape.Layer) []nn.Layer {
	all := make([]nn.Layer, len(layers))
	for i, l := range layers {
		if next, ok := l.(NextToken); ok {
			all[i] = nn.NextToken{Fused: next.Fused}
		} else {
			all[i] = Own(l)
		}
	}
	return all
}

// PublicLoss converts the loss of a model to one of package nn, which a program can compare. A nil
// loss stays nil.
func PublicLoss(l tape.Layer) nn.Layer {
	switch l := l.(type) {
	case nil:
		return nil
	case NextToken:
		return nn.NextToken{Fused: l.Fused}
	case CrossEntropy:
		return nn.CrossEntropy(l)
	}
	return Own(l)
}

// Own makes a layer of package nn of one that has no type there.
func Own(l tape.Layer) nn.Layer { return tape.Public(l).(nn.Layer) }

// maker holds what each shared layer was converted to.
type maker map[nn.Layer]*tape.Shared

func (m maker) all(layers []nn.Layer) []tape.Layer {
	all := make([]tape.Layer, len(layers))
	for i, l := range layers {
		all[i] = m.one(l)
	}
	return all
}

// one converts a layer. It returns nil for nil, which the declaration reports with its path.
func (m maker) one(l nn.Layer) tape.Layer {
	switch of := l.(type) {
	case interface{ Definition() tape.Layer }:
		return of.Definition()
	case interface{ Inlined() nn.Layer }:
		return tape.Inline(m.one(of.Inlined()))
	case interface{ Named() (string, nn.Layer) }:
		name, l := of.Named()
		return tape.As(name, m.one(l))
	case interface{ Repeated() (int, nn.Layer) }:
		n, l := of.Repeated()
		return tape.Repeat{N: n, Layer: m.one(l)}
	case interface{ Shared() nn.Layer }:
		if m[l] == nil {
			m[l] = tape.Share(m.one(of.Shared()))
		}
		return m[l]
	}
	if made := m.holding(l); made != nil {
		return made
	}
	return alone(l)
}

// holding converts a layer that holds others.
func (m maker) holding(l nn.Layer) tape.Layer {
	switch l := l.(type) {
	case nn.Sequential:
		return tape.Sequential(m.all(l))
	case nn.Residual:
		return tape.Residual{Body: m.one(l.Body), Shortcut: m.one(l.Shortcut), After: m.one(l.After)}
	case nn.Concat:
		return tape.Concat{Branches: m.all(l.Branches), Dim: l.Dim}
	case nn.Module:
		return tape.Module{Name: l.Name, Parts: m.all(l.Parts), Params: l.Params, Run: l.Run}
	}
	return nil
}

// alone converts a layer that holds no others.
func alone(l nn.Layer) tape.Layer {
	switch l := l.(type) {
	case nn.Conv1d:
		if l.Transposed {
			return ConvTranspose1d(l)
		}
	case nn.Conv2d:
		if l.Transposed {
			return ConvTranspose2d(l)
		}
	case nn.Conv3d:
		if l.Transposed {
			return ConvTranspose3d(l)
		}
	case nn.Activation:
		return activation(l)
	case nn.Loss:
		if made, ok := losses[l]; ok {
			return made
		}
		return tape.Wrong(fmt.Sprintf("Loss is %q: want one of %s", string(l), classes(losses)))
	case nn.RMSNorm:
		return RMSNorm{Size: int(l)}
	case nn.Attention:
		return Attention{
			Hidden: l.Hidden, Heads: l.Heads, KVHeads: l.KVHeads, HeadSize: l.HeadSize, NoBias: l.NoBias,
			Rotary: l.Rotary, Dropout: l.Dropout, Cross: l.Cross,
		}
	case nn.NextToken:
		next := NextToken{l.Fused}
		if l.Chunks != 0 || l.InForward {
			return HeadLoss{Chunks: l.Chunks, Loss: next, InForward: l.InForward}
		}
		return next
	}
	if l == nil {
		return nil
	}
	value := reflect.ValueOf(l)
	same, ok := alike[value.Type().Name()]
	if !ok || !value.CanConvert(same) {
		return nil
	}
	return value.Convert(same).Interface().(tape.Layer)
}

// activations makes the layers that an nn.Activation names.
var activations = map[string]func(nn.ReLU) tape.Layer{
	"LeakyReLU":   func(l nn.ReLU) tape.Layer { return LeakyReLU(l) },
	"ELU":         func(l nn.ReLU) tape.Layer { return ELU(l) },
	"ReLU6":       func(l nn.ReLU) tape.Layer { return ReLU6(l) },
	"Hardswish":   func(l nn.ReLU) tape.Layer { return Hardswish(l) },
	"Hardsigmoid": func(l nn.ReLU) tape.Layer { return Hardsigmoid(l) },
	"Mish":        func(l nn.ReLU) tape.Layer { return Mish(l) },
	"LogSoftmax":  func(nn.ReLU) tape.Layer { return LogSoftmax{} },
}

// losses are those that an nn.Loss names.
var losses = map[nn.Loss]tape.Layer{
	"MSELoss": MSE{}, "HuberLoss": Huber{}, "SmoothL1Loss": Huber{}, "L1Loss": L1{}, "KLDivLoss": KLDiv{}, "BCEWithLogitsLoss": BCEWithLogits{}, "NLLLoss": NLL{},
}

func activation(l nn.Activation) tape.Layer {
	of, ok := activations[l.Name]
	switch {
	case !ok:
		return tape.Wrong(fmt.Sprintf("Name is %q: want one of %s", l.Name, classes(activations)))
	case l.InPlace && l.Name == "LogSoftmax":
		return tape.Wrong("a LogSoftmax is never InPlace")
	}
	return of(nn.ReLU{InPlace: l.InPlace})
}

// classes lists the names of classes.
func classes[K ~string, V any](m map[K]V) string {
	var names []string
	for name := range m {
		names = append(names, string(name))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// alike has the layers that are those of package nn with the same name and fields.
var alike = byName(
	ReLU{}, SiLU{}, GELU{}, PReLU(0), Sigmoid{}, Tanh{}, Softmax{},
	Conv1d{}, Conv2d{}, Conv3d{}, Linear{}, Embedding{}, RNN{}, LSTM{}, GRU{}, Dropout{}, ChannelDropout{}, StochasticDepth{},
	CrossEntropy{}, CTC(0),
	BatchNorm{}, LayerNorm{}, GroupNorm{}, InstanceNorm{}, LocalResponseNorm(0),
	MaxPool{}, AvgPool{}, AdaptiveAvgPool(0), AdaptiveMaxPool(0), Flatten{}, Reshape{}, Upsample(0), PixelShuffle(0), ZeroPad2d{}, tape.Identity{}, tape.Permute{},
)

func byName(layers ...tape.Layer) map[string]reflect.Type {
	types := map[string]reflect.Type{}
	for _, l := range layers {
		t := reflect.TypeOf(l)
		types[t.Name()] = t
	}
	return types
}
