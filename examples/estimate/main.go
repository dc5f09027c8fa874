// Command estimate prints what two models need: VGG19 for training, layer by layer,
// and Llama 3 8B for training on eight GPUs and for serving.
package main

import (
	"fmt"
	"io"
	"log"
	"os"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

func main() {
	if err := run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(w io.Writer) error {
	if err := vgg19(w); err != nil {
		return err
	}
	return llama(w)
}

// vgg19 prints the whole report, and the batch that a GPU of 24 GiB takes.
func vgg19(w io.Writer) error {
	m, err := zoo.ByName("vgg19")
	if err != nil {
		return err
	}
	opts := []estimate.Option{estimate.Name(m.Title), estimate.Train("adam"), estimate.InputShape(32, 3, 224, 224)}
	r, err := estimate.Model(m.Layers, opts...)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprint(w, r); err != nil {
		return err
	}
	batch, err := estimate.MaxBatch(m.Layers, 24*alloc.GiB, opts...)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "largest batch that trains in 24 GiB: %d\n\n", batch)
	return nil
}

// llama prints the peaks of training and serving.
func llama(w io.Writer) error {
	m, err := zoo.ByName("llama-3-8b")
	if err != nil {
		return err
	}
	train, err := estimate.Model(m.Layers, estimate.Tokens(1, 8192), estimate.MixedPrecision(alloc.BFloat16),
		estimate.Train("adamw"), estimate.Checkpointed("model.layers.*"), estimate.Sharding{Data: 8, ZeRO: 3})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s, %d parameters\n", m.Title, train.Params.Count)
	fmt.Fprintf(w, "training, 8 GPUs, ZeRO 3, blocks checkpointed, 8192 tokens each: %v a GPU, at %s\n",
		train.Training.Peak, train.Training.PeakAt)

	for _, sequences := range []int{1, 8, 32} {
		cache, err := m.Cache(sequences, 8192)
		if err != nil {
			return err
		}
		serve, err := estimate.Model(m.Layers, estimate.Tokens(1, 512), estimate.Precision(alloc.BFloat16),
			cache)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "serving %2d sequences of 8192 tokens, prompts in pieces of 512: %v, of it %v cache; nvidia-smi shows %v\n",
			sequences, serve.Inference.Peak.Bytes, serve.Inference.Cache, serve.Memory().Footprint.Device)
	}
	return nil
}
