package main

import (
	"context"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// training goes through the memory of a transformer's training: parameters and
// optimizer states that stay, activations that pile up and go, gradients.
type training struct {
	tracker *tracker.MemTracker
	pause   time.Duration
	leak    bool

	layers []layer
	losses []*tracker.Buffer
}

type layer struct{ weights, moments []*tracker.Buffer }

const (
	layers   = 8
	hidden   = 1024
	batch    = 16
	sequence = 512
)

func newTraining(tr *tracker.MemTracker, pause time.Duration, leak bool) *training {
	return &training{tracker: tr, pause: pause, leak: leak}
}

func (t *training) run(ctx context.Context, steps int) error {
	section := t.tracker.Section("load")
	err := t.load()
	section.End()
	t.tracker.Track()
	for i := 0; err == nil && ctx.Err() == nil && (steps == 0 || i < steps); i++ {
		section := t.tracker.Section("step")
		err = t.step(ctx, sequence-(i%4)*sequence/8)
		section.End()
		t.tracker.Track()
	}
	return err
}

func (t *training) load() error {
	for range layers {
		var l layer
		for _, shape := range []alloc.Shape{{3 * hidden, hidden}, {hidden, hidden}, {4 * hidden, hidden}, {hidden, 4 * hidden}} {
			w, err := t.tracker.Alloc(shape, alloc.Float32, tracker.Parameter)
			if err != nil {
				return err
			}
			l.weights = append(l.weights, w)
		}
		if err := t.optimizer(&l); err != nil {
			return err
		}
		t.layers = append(t.layers, l)
	}
	return nil
}

// optimizer keeps two moments for each weight, as Adam does.
func (t *training) optimizer(l *layer) error {
	for _, w := range l.weights {
		for range 2 {
			m, err := t.tracker.Alloc(w.Shape(), alloc.Float32, tracker.OptimizerState)
			if err != nil {
				return err
			}
			l.moments = append(l.moments, m)
		}
	}
	return nil
}

func (t *training) step(ctx context.Context, tokens int) error {
	input, err := t.tracker.Alloc(alloc.Shape{batch, tokens}, alloc.Int64, tracker.Input)
	if err != nil {
		return err
	}
	activations, err := t.forward(ctx, tokens)
	if err == nil {
		err = t.loss()
	}
	if err == nil {
		err = t.backward(ctx, activations)
	}
	if free := input.Free(); err == nil {
		err = free
	}
	return err
}

func (t *training) forward(ctx context.Context, tokens int) ([]*tracker.Buffer, error) {
	section := t.tracker.Section("forward")
	defer section.End()
	var activations []*tracker.Buffer
	for range t.layers {
		for _, width := range []int{3 * hidden, hidden, 4 * hidden} {
			a, err := t.tracker.Alloc(alloc.Shape{batch, tokens, width}, alloc.BFloat16, tracker.Activation)
			if err != nil {
				return nil, err
			}
			activations = append(activations, a)
		}
		t.sleep(ctx)
	}
	return activations, nil
}

// loss is one number a step, which a list that nobody empties may keep.
func (t *training) loss() error {
	l, err := t.tracker.Alloc(alloc.Shape{batch, sequence, hidden}, alloc.Float32, tracker.Temporary)
	if err != nil {
		return err
	}
	if t.leak {
		t.losses = append(t.losses, l)
		return nil
	}
	return l.Free()
}

func (t *training) backward(ctx context.Context, activations []*tracker.Buffer) error {
	section := t.tracker.Section("backward")
	defer section.End()
	for i, l := range slices.Backward(t.layers) {
		var gradients []*tracker.Buffer
		for _, w := range l.weights {
			g, err := t.tracker.Alloc(w.Shape(), alloc.Float32, tracker.Gradient)
			if err != nil {
				return err
			}
			gradients = append(gradients, g)
		}
		t.sleep(ctx)
		for _, b := range append(gradients, activations[3*i:3*i+3]...) {
			if err := b.Free(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *training) sleep(ctx context.Context) {
	select {
	case <-time.After(t.pause):
	case <-ctx.Done():
	}
}
