package estimate_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

// The zoo's largest models: what their tensors need, and what an allocator makes of a training run.
func BenchmarkModel(b *testing.B) {
	for name, model := range map[string]string{"resnet152": "resnet152", "llama3-70b": "llama-3-70b"} {
		for part, opts := range map[string][]estimate.Option{"tensors": {estimate.OnCPU()}, "whole": nil} {
			b.Run(name+"/"+part, func(b *testing.B) {
				m, err := zoo.ByName(model)
				require.NoError(b, err)
				opts := append(opts, m.Input, estimate.Train("adamw"))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := estimate.Model(m.Layers, opts...); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
