// Package layer knows what layers do: which parameters they declare, which operations they record
// on a tape, and what these keep for the backward pass. From makes such layers from the values of
// package nn. It knows no model; package family builds models from it.
package layer

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

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
		if next, ok := l.(NextToken); ok && !next.Shifts {
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
func Own(l tape.Layer) nn.Layer { return own{definition: l} }

// own is an nn.Layer without a type in package nn. It embeds that interface, and leaves it nil, for its
// unexported method alone, which nothing calls.
type own struct {
	nn.Layer
	definition tape.Layer
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
	case own:
		return of.definition
	case interface{ Inlined() nn.Layer }:
		return tape.Inline(m.one(of.Inlined()))
	case interface{ Named() (string, nn.Layer) }:
		name, l := of.Named()
		return tape.As(name, m.one(l))
	case interface{ Sides() (nn.Layer, [3][]int) }:
		l, sides := of.Sides()
		return uneven(m.one(l), sides)
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
		return m.module(l)
	}
	return nil
}

// module converts a layer of the program's own.
func (m maker) module(l nn.Module) tape.Layer {
	made := tape.Module{Name: l.Name, Parts: m.all(l.Parts)}
	for _, p := range l.Params {
		made.Params = append(made.Params, tape.Param{Name: p.Name, Shape: p.Shape, DType: p.DType, Buffer: p.Buffer, Tied: p.Tied, Split: p.Split})
	}
	if l.Run != nil { // the declaration reports that there is none
		made.Run = func(f *tape.Flow, x tape.Tensor) tape.Tensor {
			return tape.Tensor(l.Run((*nn.Flow)(f.Handle()), nn.Tensor(x)))
		}
	}
	return made
}

// alone converts a layer that holds no others.
func alone(l nn.Layer) tape.Layer {
	switch l := l.(type) {
	case nn.Conv1d:
		c := convOf(nn.Conv2d(l))
		if l.Transposed {
			return ConvTranspose1d(c)
		}
		return Conv1d(c)
	case nn.Conv2d:
		c := convOf(l)
		if l.Transposed {
			return ConvTranspose2d(c)
		}
		return c
	case nn.Conv3d:
		c := convOf(nn.Conv2d(l))
		if l.Transposed {
			return ConvTranspose3d(c)
		}
		return Conv3d(c)
	case nn.MaxPool:
		return poolOf(l)
	case nn.AvgPool:
		return AvgPool(poolOf(nn.MaxPool(l)))
	case nn.BatchNorm:
		return BatchNorm{Features: int(l)}
	case nn.Class:
		if made, ok := classes[l]; ok {
			return made
		}
		return tape.Wrong(fmt.Sprintf("Class is %q: want one of %s", string(l), known()))
	case nn.RMSNorm:
		return RMSNorm{Size: int(l)}
	case nn.Attention:
		return Attention{
			Hidden: l.Hidden, Heads: l.Heads, KVHeads: l.KVHeads, HeadSize: l.HeadSize, NoBias: l.NoBias,
			Rotary: l.Rotary, Dropout: l.Dropout, Cross: l.Cross,
		}
	case nn.NextToken:
		next := NextToken{Fused: l.Fused}
		if l.Chunks != 0 || l.InForward || l.EachBackward || l.NoLogits {
			return HeadLoss{Chunks: l.Chunks, Loss: next, InForward: l.InForward, EachBackward: l.EachBackward, NoLogits: l.NoLogits, WideGradients: l.WideGradients}
		}
		return next
	}
	if l == nil {
		return nil
	}
	value := reflect.ValueOf(l)
	same, ok := alike()[value.Type().Name()]
	if !ok || !value.CanConvert(same) {
		return nil
	}
	return value.Convert(same).Interface().(tape.Layer)
}

// classes are the layers that an nn.Class names.
var classes = map[nn.Class]tape.Layer{
	"GELU": GELU{}, "Sigmoid": Sigmoid{}, "Tanh": Tanh{}, "Softmax": Softmax{}, "LogSoftmax": LogSoftmax{}, "Identity": tape.Identity{},
	"SiLU": SiLU{}, "LeakyReLU": LeakyReLU{}, "ELU": ELU{}, "ReLU6": ReLU6{}, "Hardswish": Hardswish{}, "Hardsigmoid": Hardsigmoid{}, "Mish": Mish{},
	"SiLU(inplace=True)": SiLU{true}, "LeakyReLU(inplace=True)": LeakyReLU{true}, "ELU(inplace=True)": ELU{true}, "ReLU6(inplace=True)": ReLU6{true},
	"Hardswish(inplace=True)": Hardswish{true}, "Hardsigmoid(inplace=True)": Hardsigmoid{true}, "Mish(inplace=True)": Mish{true},
	"Dropout1d": ChannelDropout{}, "Dropout2d": ChannelDropout{}, "Dropout3d": ChannelDropout{}, "StochasticDepth": StochasticDepth{},
	"MSELoss": MSE{}, "HuberLoss": Huber{}, "SmoothL1Loss": Huber{}, "L1Loss": L1{}, "KLDivLoss": KLDiv{}, "BCEWithLogitsLoss": BCEWithLogits{}, "NLLLoss": NLL{},
}

// known lists the classes, without those in place.
func known() string {
	var names []string
	for name := range classes {
		if !strings.HasSuffix(string(name), ")") {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// uneven gives a window the settings of its single dimensions.
func uneven(l tape.Layer, sides [3][]int) tape.Layer {
	dims := 3
	switch l.(type) {
	case Conv1d, ConvTranspose1d:
		dims = 1
	case Conv2d, ConvTranspose2d:
		dims = 2
	}
	var each [3][3]int
	for i, side := range sides {
		if len(side) > dims {
			return tape.Wrong(fmt.Sprintf("Uneven has %v: want one number for each dimension, %d at most", side, dims))
		}
		copy(each[i][:], side)
	}
	conv := func(c Conv2d) Conv2d {
		c.Kernels, c.Strides, c.Paddings = each[0], each[1], each[2]
		return c
	}
	switch l := l.(type) {
	case Conv1d:
		return Conv1d(conv(Conv2d(l)))
	case Conv2d:
		return conv(l)
	case Conv3d:
		return Conv3d(conv(Conv2d(l)))
	case ConvTranspose1d:
		return ConvTranspose1d(conv(Conv2d(l)))
	case ConvTranspose2d:
		return ConvTranspose2d(conv(Conv2d(l)))
	case ConvTranspose3d:
		return ConvTranspose3d(conv(Conv2d(l)))
	case MaxPool:
		l.Kernels, l.Strides, l.Paddings = each[0], each[1], each[2]
		return l
	case AvgPool:
		l.Kernels, l.Strides, l.Paddings = each[0], each[1], each[2]
		return l
	}
	return tape.Wrong("Uneven takes a convolution, a MaxPool or an AvgPool")
}

// alike has the layers that are those of package nn with the same name and fields.
var alike = sync.OnceValue(func() map[string]reflect.Type {
	return byName(
		ReLU{}, PReLU(0), Linear{}, Embedding{}, RNN{}, LSTM{}, GRU{}, Dropout{},
		CrossEntropy{}, CTC(0),
		LayerNorm{}, GroupNorm{}, InstanceNorm{}, LocalResponseNorm(0),
		AdaptiveAvgPool(0), AdaptiveMaxPool(0), Flatten{}, Reshape{}, Upsample(0), PixelShuffle(0), ZeroPad2d{}, tape.Permute{},
	)
})

func byName(layers ...tape.Layer) map[string]reflect.Type {
	types := map[string]reflect.Type{}
	for _, l := range layers {
		t := reflect.TypeOf(l)
		types[t.Name()] = t
	}
	return types
}
