// Package layer knows what layers do: which parameters they declare, which operations they record
// on a tape, and what these keep for the backward pass. From makes such layers from the values of
// package nn. It knows no model; package family builds models from it.
package layer

import (
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
	case nn.ReLU:
		return ReLU(l)
	case nn.ReLU6:
		return ReLU6(l)
	case nn.LeakyReLU:
		return LeakyReLU(l)
	case nn.ELU:
		return ELU(l)
	case nn.SiLU:
		return SiLU(l)
	case nn.GELU:
		return GELU(l)
	case nn.Mish:
		return Mish(l)
	case nn.PReLU:
		return PReLU(l)
	case nn.Hardswish:
		return Hardswish(l)
	case nn.Hardsigmoid:
		return Hardsigmoid(l)
	case nn.Sigmoid:
		return Sigmoid(l)
	case nn.Tanh:
		return Tanh(l)
	case nn.Softmax:
		return Softmax(l)
	case nn.LogSoftmax:
		return LogSoftmax(l)
	case nn.Conv1d:
		if l.Transposed {
			return ConvTranspose1d(l)
		}
		return Conv1d(l)
	case nn.Conv2d:
		if l.Transposed {
			return ConvTranspose2d(l)
		}
		return Conv2d(l)
	case nn.Conv3d:
		if l.Transposed {
			return ConvTranspose3d(l)
		}
		return Conv3d(l)
	case nn.Dropout:
		return Dropout(l)
	case nn.ChannelDropout:
		return ChannelDropout(l)
	case nn.StochasticDepth:
		return StochasticDepth(l)
	case nn.Linear:
		return Linear(l)
	case nn.Embedding:
		return Embedding(l)
	case nn.RNN:
		return RNN(l)
	case nn.LSTM:
		return LSTM(l)
	case nn.GRU:
		return GRU(l)
	case nn.CrossEntropy:
		return CrossEntropy(l)
	case nn.NLL:
		return NLL(l)
	case nn.MSE:
		return MSE(l)
	case nn.L1:
		return L1(l)
	case nn.Huber:
		return Huber(l)
	case nn.KLDiv:
		return KLDiv(l)
	case nn.BCEWithLogits:
		return BCEWithLogits(l)
	case nn.CTC:
		return CTC(l)
	case nn.NextToken:
		return NextToken(l)
	case nn.BatchNorm:
		return BatchNorm(l)
	case nn.LayerNorm:
		return LayerNorm(l)
	case nn.GroupNorm:
		return GroupNorm(l)
	case nn.InstanceNorm:
		return InstanceNorm(l)
	case nn.LocalResponseNorm:
		return LocalResponseNorm(l)
	case nn.MaxPool:
		return MaxPool(l)
	case nn.AvgPool:
		return AvgPool(l)
	case nn.AdaptiveAvgPool:
		return AdaptiveAvgPool(l)
	case nn.AdaptiveMaxPool:
		return AdaptiveMaxPool(l)
	case nn.Flatten:
		return Flatten(l)
	case nn.Reshape:
		return Reshape(l)
	case nn.Upsample:
		return Upsample(l)
	case nn.PixelShuffle:
		return PixelShuffle(l)
	case nn.ZeroPad2d:
		return ZeroPad2d(l)
	case nn.Identity:
		return tape.Identity(l)
	case nn.Permute:
		return tape.Permute(l)
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
	return nil
}
