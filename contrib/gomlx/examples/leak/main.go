// Command leak trains a small model with GoMLX, and keeps one loss in a hundred on the device. The
// second mark of the report names the line. It runs on GoMLX's backend in plain Go; a program that imports go-xla's backend too
// runs on a GPU.
package main

import (
	"fmt"
	"log"
	"os"

	"github.com/gomlx/compute"
	_ "github.com/gomlx/compute/gobackend"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/ml/layers"
	"github.com/gomlx/gomlx/ml/layers/activation"
	"github.com/gomlx/gomlx/ml/model"
	"github.com/gomlx/gomlx/ml/train"
	"github.com/gomlx/gomlx/ml/train/loss"
	"github.com/gomlx/gomlx/ml/train/optimizer"

	memtrack "github.com/gpumemtrack/gpumemtrack/contrib/gomlx"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// history is the mistake: the losses stay on the device for as long as the program runs.
var history []*tensors.Tensor

func main() {
	tr, err := tracker.New(tracker.Config{Report: os.Stdout})
	if err != nil {
		log.Fatal(err)
	}
	defer tr.Close()

	backend := memtrack.Wrap(compute.MustNew(), tr)
	trainer := train.NewTrainer(backend, model.NewStore(), mlp, loss.MeanSquaredError, optimizer.Adam().Done(), nil, nil)
	step, err := memtrack.Step(trainer)
	if err != nil {
		log.Fatal(err)
	}

	run(step, 0, 100)
	tr.Track() // what a trained model holds
	run(step, 100, 1000)
	tr.Track() // what 900 steps added
	fmt.Println(tr.Profile())
}

func mlp(scope *model.Scope, image *graph.Node) *graph.Node {
	x := activation.Relu(layers.Dense(scope.In("hidden"), image, true, 128))
	return layers.Dense(scope.In("out"), x, true, 10)
}

func run(step func(train.Batch) ([]*tensors.Tensor, error), from, to int) {
	for n := from; n < to; n++ {
		metrics, err := step(batch())
		if err != nil {
			log.Fatal(err)
		}
		for i, m := range metrics {
			if i == 0 && n%100 == 0 {
				history = append(history, m) // the leak
				continue
			}
			m.MustFinalizeAll()
		}
	}
}

func batch() train.Batch {
	images, labels := make([]float32, 16*784), make([]float32, 16*10)
	return train.Batch{
		Inputs: []*tensors.Tensor{tensors.FromFlatDataAndDimensions(images, 16, 784)},
		Labels: []*tensors.Tensor{tensors.FromFlatDataAndDimensions(labels, 16, 10)},
	}
}
