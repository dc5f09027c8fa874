package memtrack

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/gomlx/compute"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/train"

	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// errNotWrapped says what to do about a trainer without a tracker.
var errNotWrapped = errors.New("the trainer's backend is not one of memtrack.Wrap, so no tracker knows its buffers: pass the wrapped backend to train.NewTrainer")

// Step returns the trainer's TrainStep, each in a section "step" of the first tracker. After
// it, the model's variables have their names in the ledger. The error is that the trainer's backend is not one of Wrap.
//
//	step, err := memtrack.Step(trainer)
//	...
//	metrics, err := step(batch)
func Step(trainer *train.Trainer) (func(train.Batch) ([]*tensors.Tensor, error), error) {
	b, ours := trainer.Backend().(*backend)
	if !ours {
		return nil, fmt.Errorf("step: %w", errNotWrapped)
	}
	return func(batch train.Batch) ([]*tensors.Tensor, error) {
		defer b.trackers[0].Section("step").End()
		defer b.nameAll(trainer.Store())
		return trainer.TrainStep(batch)
	}, nil
}

// Loop makes each step of a loop a section "step", which begins where the step before ends, so that it includes the time and
// memory of reading the data set. Call it before the loop's other hooks are set. The errors are those of Step.
func Loop(loop *train.Loop) error {
	b, ours := loop.Trainer.Backend().(*backend)
	if !ours {
		return fmt.Errorf("loop: %w", errNotWrapped)
	}
	var step *tracker.Section
	end := func() {
		if step != nil {
			step.End()
			step = nil
		}
	}
	next := func() {
		end() // a run that failed has not ended its last step
		step = b.trackers[0].Section("step")
	}
	loop.OnStart("memtrack", 0, func(*train.Loop, train.Dataset) error {
		next()
		return nil
	})
	loop.OnStep("memtrack", 0, func(l *train.Loop, _ []*tensors.Tensor) error {
		b.nameAll(l.Trainer.Store())
		if l.EndStep >= 0 && l.LoopStep+1 >= l.EndStep {
			end()
		} else {
			next()
		}
		return nil
	})
	loop.OnEnd("memtrack", 0, func(*train.Loop, []*tensors.Tensor) error {
		end()
		return nil
	})
	return nil
}

// VerifyNoLeaks fails the test if buffers of a wrapped backend are live that the program can still
// reach. It runs Go's collector first, so tensors that the program has only forgotten do not count.
// The options leave out what may stay, such as a model's variables:
//
//	defer memtrack.VerifyNoLeaks(t, backend, leaks.Since(tr.Snapshot()))
func VerifyNoLeaks(t interface{ Errorf(string, ...any) }, wrapped compute.Backend, opts ...leaks.Option) {
	b, ours := wrapped.(*backend)
	if !ours {
		t.Errorf("verify no leaks: the backend %q is not one of memtrack.Wrap, so no tracker knows its buffers", wrapped.Name())
		return
	}
	for _, tr := range b.trackers {
		collect(tr, opts)
		tracker.VerifyNoLeaks(t, tr, opts...)
	}
}

// collect runs Go's collector until nothing is left, or for a while: its cleanups run some time after it.
func collect(tr *tracker.MemTracker, opts []leaks.Option) {
	for wait := time.Millisecond; wait < time.Second && len(tr.Leaks(opts...)) > 0; wait *= 2 {
		runtime.GC()
		time.Sleep(wait)
	}
}
