package memtrack_test

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/gomlx/compute"
	. "github.com/gomlx/gomlx/core/graph" //nolint:revive // as programs that use GoMLX do
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/dataset"
	"github.com/gomlx/gomlx/ml/layers"
	"github.com/gomlx/gomlx/ml/layers/activation"
	"github.com/gomlx/gomlx/ml/model"
	"github.com/gomlx/gomlx/ml/train"
	"github.com/gomlx/gomlx/ml/train/loss"
	"github.com/gomlx/gomlx/ml/train/optimizer"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	memtrack "github.com/gpumemtrack/gpumemtrack/contrib/gomlx"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// mlp is a small model of two layers.
func mlp(scope *model.Scope, _ any, inputs []*Node) []*Node {
	x := layers.Dense(scope.In("hidden"), inputs[0], true, 64)
	return []*Node{layers.Dense(scope.In("out"), activation.Relu(x), true, 1)}
}

func newTrainer(b compute.Backend) *train.Trainer {
	return train.NewTrainer(b, model.NewStore(), mlp, loss.MeanSquaredError, optimizer.Adam().Done(), nil, nil)
}

func batch() train.Batch {
	return train.Batch{Inputs: []*tensors.Tensor{matrix(64, 32)}, Labels: []*tensors.Tensor{matrix(64, 1)}}
}

// kinds are the live bytes and the labels of each kind.
func kinds(tr *tracker.MemTracker) (bytes map[tracker.Kind]alloc.Bytes, labels map[tracker.Kind][]string) {
	bytes, labels = map[tracker.Kind]alloc.Bytes{}, map[tracker.Kind][]string{}
	for _, b := range allocations(tr) {
		bytes[b.Kind] += b.Requested
		if b.Label != "" {
			labels[b.Kind] = append(labels[b.Kind], b.Label)
		}
	}
	return bytes, labels
}

// sections are the calls of each.
func sections(tr *tracker.MemTracker) map[string]int64 {
	calls := map[string]int64{}
	for _, row := range tr.Profile() {
		calls[row.Path] = row.Calls
	}
	return calls
}

// weights are the model's: 32 * 64 + 64 and 64 + 1 numbers.
const weights = alloc.Bytes(4 * (32*64 + 64 + 64 + 1))

// TestStep: after the first step already, all that lives is known by name.
func TestStep(t *testing.T) {
	eachBackend(t, func(t *testing.T, b compute.Backend, tr *tracker.MemTracker) {
		trainer := newTrainer(b)
		step, err := memtrack.Step(trainer)
		require.NoError(t, err)
		for n := range 50 {
			metrics, err := step(batch())
			require.NoError(t, err)
			for _, m := range metrics {
				m.MustFinalizeAll()
			}
			if n > 2 && n < 49 {
				continue
			}
			collected(t, tr, func() bool { bytes, _ := kinds(tr); return bytes[tracker.Activation]+bytes[tracker.Input] == 0 })
			bytes, labels := kinds(tr)
			assert.Equal(t, weights, bytes[tracker.Parameter], "step %d: %v", n, labels[tracker.Parameter])
			assert.Len(t, labels[tracker.Parameter], 4)
			assert.Greater(t, bytes[tracker.OptimizerState], 2*weights, "two moments, and the step's number")
			assert.Contains(t, labels[tracker.Parameter], "/hidden/dense/weights")
		}
		for _, x := range allocations(tr) {
			assert.NotEmpty(t, x.Label, "%v", x)
		}
		assert.Equal(t, map[string]int64{"step": 50}, sections(tr))
	})
}

// TestNamesAreLearned: without Step, results have their names from the second step on.
func TestNamesAreLearned(t *testing.T) {
	eachBackend(t, func(t *testing.T, b compute.Backend, tr *tracker.MemTracker) {
		trainer := newTrainer(b)
		for n := range 3 {
			metrics, err := trainer.TrainStep(batch())
			require.NoError(t, err)
			for _, m := range metrics {
				m.MustFinalizeAll()
			}
			if n > 0 {
				bytes, labels := kinds(tr)
				assert.Equal(t, weights, bytes[tracker.Parameter], "%v", labels[tracker.Parameter])
				assert.GreaterOrEqual(t, bytes[tracker.OptimizerState], 2*weights)
			}
		}
	})
}

// TestGradients: gradients that are accumulated over steps are known.
func TestGradients(t *testing.T) {
	eachBackend(t, func(t *testing.T, b compute.Backend, tr *tracker.MemTracker) {
		trainer := newTrainer(b)
		require.NoError(t, trainer.AccumulateGradients(3))
		step, err := memtrack.Step(trainer)
		require.NoError(t, err)
		for range 6 {
			_, err := step(batch())
			require.NoError(t, err)
		}
		bytes, labels := kinds(tr)
		assert.Equal(t, weights, bytes[tracker.Parameter], "%v", labels[tracker.Parameter])
		assert.Equal(t, weights, bytes[tracker.Gradient])
	})
}

// TestLoop: a loop's steps are sections, and the ledger does not grow.
func TestLoop(t *testing.T) {
	eachBackend(t, func(t *testing.T, b compute.Backend, tr *tracker.MemTracker) {
		data, err := dataset.InMemoryFromData(b, "zeros", []any{matrix(256, 32)}, []any{matrix(256, 1)})
		require.NoError(t, err)
		trainer := newTrainer(b)
		loop := train.NewLoop(trainer)
		require.NoError(t, memtrack.Loop(loop))
		var live []int64
		for range 3 {
			_, err = loop.RunSteps(data.Infinite(true).Shuffle().BatchSize(64, false), 20)
			require.NoError(t, err)
			runtime.GC()
			live = append(live, tr.LightSnapshot().Live.Count)
		}
		bytes, labels := kinds(tr)
		assert.Equal(t, weights, bytes[tracker.Parameter], "%v", labels[tracker.Parameter])
		t.Log("live buffers:", live)
		assert.Equal(t, map[string]int64{"step": 60}, sections(tr))
		runtime.KeepAlive(data)
	})
}

func TestNotWrapped(t *testing.T) {
	trainer := newTrainer(open(t, "go"))
	_, err := memtrack.Step(trainer)
	require.ErrorContains(t, err, "memtrack.Wrap")
	require.ErrorContains(t, memtrack.Loop(train.NewLoop(trainer)), "memtrack.Wrap")
}

// BenchmarkStep compares a training step with a backend wrapped and bare, in turns, and reports the ratio of the medians:
// of the model of these tests, and of one for images of 28 by 28, of 784, 128 and 10 neurons.
func BenchmarkStep(b *testing.B) {
	for name, config := range configs(b) {
		inner := open(b, config)
		b.Run(name+"/tiny", func(b *testing.B) {
			compare(b, inner, mlp, batch)
		})
		b.Run(name+"/images", func(b *testing.B) {
			images := func(scope *model.Scope, _ any, inputs []*Node) []*Node {
				x := layers.Dense(scope.In("hidden"), inputs[0], true, 128)
				return []*Node{layers.Dense(scope.In("out"), activation.Relu(x), true, 10)}
			}
			compare(b, inner, images, func() train.Batch {
				return train.Batch{Inputs: []*tensors.Tensor{matrix(64, 784)}, Labels: []*tensors.Tensor{matrix(64, 10)}}
			})
		})
	}
}

func compare(b *testing.B, inner compute.Backend, m train.ModelFn, next func() train.Batch) {
	var backends = [2]compute.Backend{inner, memtrack.Wrap(inner, newTracker(b))}
	var trainers [2]*train.Trainer
	for i := range trainers {
		trainers[i] = train.NewTrainer(backends[i], model.NewStore(), m, loss.MeanSquaredError, optimizer.Adam().Done(), nil, nil)
	}
	var took [2][]time.Duration
	for range 20 { // both are compiled
		for _, trainer := range trainers {
			step(b, trainer, next())
		}
	}
	for n := 0; b.Loop(); n++ {
		for i := range 2 {
			i := (i + n) % 2
			took[i] = append(took[i], step(b, trainers[i], next()))
		}
	}
	median := func(d []time.Duration) float64 { slices.Sort(d); return float64(d[len(d)/2]) }
	b.ReportMetric(median(took[1])/median(took[0]), "wrapped/bare")
	b.ReportMetric(median(took[0])/1000, "µs-bare")
}

// step runs one step and returns its time.
func step(b *testing.B, trainer *train.Trainer, x train.Batch) time.Duration {
	began := time.Now()
	metrics, err := trainer.TrainStep(x)
	took := time.Since(began)
	if err != nil {
		b.Fatal(err)
	}
	for _, m := range metrics {
		m.MustFinalizeAll()
	}
	return took
}
