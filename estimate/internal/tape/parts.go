package tape

import (
	"strconv"
	"strings"
)

// Inline makes the parts of a layer parts of the Sequential, Residual, Concat or Module that holds
// it: the layer itself has neither a name nor a row. A transformer's block is an example: the
// residual sums have no name there, and norms and attention are parts of the block itself.
//
//	nn.Sequential{
//		nn.Inline(nn.Residual{Body: nn.Sequential{nn.As("norm1", ...), nn.As("attn", ...)}}),
//		nn.Inline(nn.Residual{Body: nn.Sequential{nn.As("norm2", ...), nn.As("mlp", ...)}}),
//	}
func Inline(l Layer) Layer { return Inlined{l} }

type Inlined struct{ Layer }

// Declare declares the parts of the layer.
func (in Inlined) Declare(d *Declaration) { d.Declare(in.Layer) }

// Inner returns the layer that is inlined.
func (in Inlined) Inner() Layer { return in.Layer }

// If returns l if the condition holds, and Identity if not.
func If(condition bool, l Layer) Layer {
	if condition {
		return l
	}
	return Identity{}
}

// declarePart declares a part under the given name, or under its own if it is Named.
func declarePart(d *Declaration, name string, l Layer) {
	switch part := l.(type) {
	case Inlined:
		if !IsNil(Unwrap(l)) {
			d.Declare(part.Layer)
			return
		}
	case Named:
		name = part.Name
	}
	d.Layer(name, l)
}

// callPart calls a part of a Sequential or a similar layer, with the tensors that this layer was
// given beside its input.
func callPart(t *Tape, name string, l Layer, x Tensor) Tensor {
	switch l.(type) {
	case Inlined, Named:
		return l.Forward(t, x)
	}
	return t.Call(name, l, x, t.beside...)
}

// partOf returns the part of a Sequential or a Repeat at a path, at any depth, or nil.
func partOf(l Layer, path string) Layer {
	switch l := Unwrap(l).(type) {
	case Sequential:
		for i, part := range l {
			if found := partAt(strconv.Itoa(i), part, path); found != nil {
				return found
			}
		}
	case Repeat:
		number, _, _ := strings.Cut(path, ".")
		if i, err := strconv.Atoi(number); err == nil && i >= l.first && i-l.first < l.N {
			return partAt(number, Unwrap(l.Layer), path)
		}
	}
	return nil
}

// partAt returns what is at a path if the path begins with part, or nil. The part has the given
// name, unless it is Named.
func partAt(name string, part Layer, path string) Layer {
	switch part := part.(type) {
	case Inlined:
		return partOf(part, path)
	case Named:
		name = part.Name
	}
	rest, ok := strings.CutPrefix(path, name)
	switch {
	case !ok:
		return nil
	case rest == "":
		return part
	case rest[0] == '.':
		return partOf(part, rest[1:])
	}
	return nil
}

// Identity returns its input.
type Identity struct{}

func (Identity) Forward(_ *Tape, x Tensor) Tensor { return x }
