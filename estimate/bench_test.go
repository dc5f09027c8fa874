package estimate_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

func BenchmarkModel(b *testing.B) {
	for name, model := range map[string]string{"resnet152": "resnet152", "llama3-70b": "llama-3-70b"} {
		b.Run(name, func(b *testing.B) {
			m, err := zoo.ByName(model)
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := estimate.Model(m.Layers, m.Input, estimate.Train(estimate.AdamW)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
