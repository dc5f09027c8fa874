package main

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// layer is one layer of the network: what package estimate knows it as, and what
// a framework would do with memory for it.
type layer struct {
	name   string
	of     estimate.Layer
	params []alloc.Shape
	// What the backward pass needs.
	keepsInput, keepsOutput, keepsPlaces bool
	view                                 bool // the output is the input in another shape
}

func conv(name string, in, out int) layer {
	return layer{
		name: name, of: estimate.Conv2d{In: in, Out: out, Kernel: 3, Padding: 1},
		params: []alloc.Shape{{out, in, 3, 3}, {out}}, keepsInput: true,
	}
}

func linear(name string, in, out int) layer {
	return layer{
		name: name, of: estimate.Linear{In: in, Out: out},
		params: []alloc.Shape{{out, in}, {out}}, keepsInput: true,
	}
}

func relu(name string) layer { return layer{name: name, of: estimate.ReLU{}, keepsOutput: true} }

func pool(name string) layer {
	return layer{name: name, of: estimate.MaxPool{Kernel: 2}, keepsInput: true, keepsPlaces: true}
}

// network is a small convolutional network for images of 32 x 32.
var network = []layer{
	conv("conv1", 3, 64), relu("relu1"),
	conv("conv2", 64, 64), relu("relu2"), pool("pool1"),
	conv("conv3", 64, 128), relu("relu3"), pool("pool2"),
	{name: "flatten", of: estimate.Flatten{}, view: true},
	linear("fc1", 128*8*8, 256), relu("relu4"),
	linear("fc2", 256, 10),
}

func input(batch int) alloc.Shape { return alloc.Shape{batch, 3, 32, 32} }

// expect estimates the network's training.
func expect(batch int) (*expected, error) {
	var layers []estimate.Layer
	for _, l := range network {
		layers = append(layers, estimate.Named{Name: l.name, Layer: l.of})
	}
	report, err := estimate.Model(layers, estimate.Input(input(batch)...), estimate.Train(estimate.Adam))
	if err != nil {
		return nil, err
	}
	e := &expected{report: report, of: make(map[string]tracker.Estimate)}
	in := input(batch)
	for i, row := range report.Layers {
		of := tracker.Estimate{
			Layer: tracker.Layer{Inputs: []alloc.Shape{in}, FLOPs: row.FLOPs, Params: row.Params},
			Of:    tracker.ByAllocated,
		}
		if !network[i].view {
			if of.Bytes, err = row.Output.Bytes(alloc.Float32); err != nil {
				return nil, err
			}
		}
		if network[i].keepsPlaces {
			places, err := row.Output.Bytes(alloc.Int64)
			if err != nil {
				return nil, err
			}
			of.Bytes += places
		}
		e.of["step/forward/"+row.Path] = of
		in = row.Output
	}
	t := report.Training
	e.of["load"] = tracker.Estimate{Of: tracker.ByKept, Bytes: t.Weights + t.Optimizer}
	e.of["step"] = tracker.Estimate{Of: tracker.ByPeak, Bytes: t.Peak}
	return e, nil
}

// expected is the report as the tracker's Profile asks for it.
type expected struct {
	report *estimate.Report
	of     map[string]tracker.Estimate // by the path of the section
}

// Estimate implements tracker.Estimator.
func (e *expected) Estimate(path string) (tracker.Estimate, bool) {
	found, ok := e.of[path]
	return found, ok
}
