package main

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

// layer is one layer of the network: what package estimate knows it as, and what
// a framework would do with memory for it.
type layer struct {
	name   string
	of     nn.Layer
	params []alloc.Shape
	// What the backward pass needs.
	keepsInput, keepsOutput, keepsPlaces bool
	view                                 bool // the output is the input in another shape
}

func conv(name string, in, out int) layer {
	return layer{
		name: name, of: nn.Conv2d{In: in, Out: out, Kernel: 3, Padding: 1},
		params: []alloc.Shape{{out, in, 3, 3}, {out}}, keepsInput: true,
	}
}

func linear(name string, in, out int) layer {
	return layer{
		name: name, of: nn.Linear{In: in, Out: out},
		params: []alloc.Shape{{out, in}, {out}}, keepsInput: true,
	}
}

func relu(name string) layer { return layer{name: name, of: nn.ReLU{}, keepsOutput: true} }

func pool(name string) layer {
	return layer{name: name, of: nn.MaxPool{Kernel: 2}, keepsInput: true, keepsPlaces: true}
}

// network is a small convolutional network for images of 32 x 32.
var network = []layer{
	conv("conv1", 3, 64), relu("relu1"),
	conv("conv2", 64, 64), relu("relu2"), pool("pool1"),
	conv("conv3", 64, 128), relu("relu3"), pool("pool2"),
	{name: "flatten", of: nn.Flatten{}, view: true},
	linear("fc1", 128*8*8, 256), relu("relu4"),
	linear("fc2", 256, 10),
}

func input(batch int) alloc.Shape { return alloc.Shape{batch, 3, 32, 32} }

// expect estimates the network's training, and what its sections will measure.
func expect(batch int) (*estimate.Report, map[string]sections.Estimate, error) {
	var layers []nn.Layer
	for _, l := range network {
		layers = append(layers, nn.As(l.name, l.of))
	}
	report, err := estimate.Model(layers, estimate.InputShape(input(batch)...), estimate.Train("adam"))
	if err != nil {
		return nil, nil, err
	}
	t := report.Training
	of := map[string]sections.Estimate{
		"load": {Of: "retained", Bytes: t.Weights + t.Optimizer},
		"step": {Of: "peak", Bytes: t.Peak.Bytes},
	}
	for _, row := range report.Layers {
		of["step/forward/"+row.Path] = sections.Estimate{
			Inputs: []alloc.Shape{row.Input}, FLOPs: row.FLOPs, Params: row.Params,
			Of: "allocated", Bytes: row.Allocated,
		}
	}
	return report, of, nil
}
