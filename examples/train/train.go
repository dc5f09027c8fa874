package main

import (
	"errors"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// trainer does with memory what a framework does in training. It computes nothing.
type trainer struct {
	tr        *tracker.MemTracker
	shapes    []alloc.Shape // of each layer's output
	params    [][]*tensor   // by layer
	optimizer []*tensor     // two states a parameter, as Adam has
	grads     [][]*tensor
	saved     [][]*tensor // what each layer's backward pass needs
	err       error       // the first; after it nothing is done
}

// tensor is a buffer with as many owners as refs.
type tensor struct {
	buf  *tracker.Buffer
	refs int
}

func (t *trainer) alloc(shape alloc.Shape, dtype alloc.DType, kind tracker.Kind) *tensor {
	if t.err != nil {
		return nil
	}
	buf, err := t.tr.Alloc(shape, dtype, kind)
	if err != nil {
		t.err = err
		return nil
	}
	return &tensor{buf, 1}
}

func (t *trainer) release(tensors ...*tensor) {
	for _, x := range tensors {
		if x == nil {
			continue
		}
		if x.refs--; x.refs == 0 {
			t.err = errors.Join(t.err, x.buf.Free())
		}
	}
}

// save keeps x for the layer's backward pass.
func (t *trainer) save(layer int, x *tensor) {
	if x != nil {
		x.refs++
		t.saved[layer] = append(t.saved[layer], x)
	}
}

// load takes the parameters and the optimizer's states.
func (t *trainer) load() {
	t.params = make([][]*tensor, len(network))
	t.grads = make([][]*tensor, len(network))
	t.saved = make([][]*tensor, len(network))
	for i, l := range network {
		for _, shape := range l.params {
			t.params[i] = append(t.params[i], t.alloc(shape, alloc.Float32, tracker.Parameter))
			for range 2 {
				t.optimizer = append(t.optimizer, t.alloc(shape, alloc.Float32, tracker.OptimizerState))
			}
		}
	}
}

// step trains on one batch.
func (t *trainer) step(batch int) {
	x := t.alloc(input(batch), alloc.Float32, tracker.Input)
	t.tr.Do("forward", func() { x = t.forward(x) })
	t.tr.Do("backward", func() { t.backward(x) })
	t.tr.Do("optimizer", func() {
		for i := range t.grads {
			t.release(t.grads[i]...)
			t.grads[i] = nil
		}
	})
}

// forward passes x through the layers, and returns the last one's output.
func (t *trainer) forward(x *tensor) *tensor {
	for i, l := range network {
		s := t.tr.Section(l.name)
		x = t.forwardLayer(i, x)
		s.End()
	}
	return x
}

func (t *trainer) forwardLayer(i int, x *tensor) *tensor {
	l := network[i]
	if l.view || t.err != nil {
		return x
	}
	y := t.alloc(t.shapes[i], alloc.Float32, tracker.Activation)
	if l.keepsInput {
		t.save(i, x)
	}
	if l.keepsOutput {
		t.save(i, y)
	}
	if l.keepsPlaces {
		places := t.alloc(t.shapes[i], alloc.Int64, tracker.Activation)
		t.save(i, places)
		t.release(places)
	}
	t.release(x)
	return y
}

// backward passes the gradient of y back, and makes the gradients of the parameters.
func (t *trainer) backward(y *tensor) {
	if t.err != nil {
		return
	}
	grad := t.alloc(y.buf.Shape(), alloc.Float32, tracker.Gradient)
	t.release(y)
	for i, l := range slices.Backward(network) {
		s := t.tr.Section(l.name)
		grad = t.backwardLayer(i, grad)
		s.End()
	}
	t.release(grad)
}

func (t *trainer) backwardLayer(i int, grad *tensor) *tensor {
	l := network[i]
	if l.view || t.err != nil {
		return grad
	}
	var next *tensor
	if i > 0 { // the gradient of the images is not needed
		next = t.alloc(t.shapes[i-1], alloc.Float32, tracker.Gradient)
	}
	for _, shape := range l.params {
		t.grads[i] = append(t.grads[i], t.alloc(shape, alloc.Float32, tracker.Gradient))
	}
	t.release(t.saved[i]...)
	t.saved[i] = nil
	t.release(grad)
	return next
}

// close frees what load took.
func (t *trainer) close() error {
	for _, params := range t.params {
		t.release(params...)
	}
	t.release(t.optimizer...)
	return t.err
}
