// Package layer knows what layers do: which parameters they declare, which operations they record
// on a tape, and what these keep for the backward pass. From makes such layers from the values of
// package nn. It knows no model; package family builds models from it.
package layer

import (
	"reflect"

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
			all[i] = nn.NextToken(next)
		} else {
			all[i] = nn.Custom(l)
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
		return nn.NextToken(l)
	case CrossEntropy:
		return nn.CrossEntropy(l)
	}
	return nn.Custom(l)
}

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
	case interface{ Recomputed() nn.Layer }:
		return tape.Recompute{Layer: m.one(of.Recomputed())}
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
		return tape.Module{Name: l.Name, Parts: m.all(l.Parts), Run: l.Run}
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
	case nn.RMSNorm:
		return RMSNorm{Size: l.Size}
	case nn.Attention:
		return Attention{
			Hidden: l.Hidden, Heads: l.Heads, KVHeads: l.KVHeads, HeadSize: l.HeadSize, NoBias: l.NoBias,
			Rotary: l.Rotary, Dropout: l.Dropout, Cross: l.Cross,
		}
	case nn.HeadLoss:
		return HeadLoss{Linear: Linear(l.Linear), Chunks: l.Chunks, Loss: NextToken(l.Loss), InForward: l.InForward}
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

// alike has the layers that are those of package nn with the same name and fields.
var alike = byName(
	ReLU{}, ReLU6{}, LeakyReLU{}, ELU{}, SiLU{}, GELU{}, Mish{}, PReLU{}, Hardswish{}, Hardsigmoid{}, Sigmoid{}, Tanh{}, Softmax{}, LogSoftmax{},
	Conv1d{}, Conv2d{}, Conv3d{}, Linear{}, Embedding{}, RNN{}, LSTM{}, GRU{}, Dropout{}, ChannelDropout{}, StochasticDepth{},
	CrossEntropy{}, NLL{}, MSE{}, L1{}, Huber{}, KLDiv{}, BCEWithLogits{}, CTC{}, NextToken{},
	BatchNorm{}, LayerNorm{}, GroupNorm{}, InstanceNorm{}, LocalResponseNorm{},
	MaxPool{}, AvgPool{}, AdaptiveAvgPool{}, AdaptiveMaxPool{}, Flatten{}, Reshape{}, Upsample{}, PixelShuffle{}, ZeroPad2d{}, tape.Identity{}, tape.Permute{},
)

func byName(layers ...tape.Layer) map[string]reflect.Type {
	types := map[string]reflect.Type{}
	for _, l := range layers {
		t := reflect.TypeOf(l)
		types[t.Name()] = t
	}
	return types
}
