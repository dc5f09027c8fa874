package setting

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

func TestFloat32Parts(t *testing.T) {
	text := Float32Parts{Float16: []Part32{{Text: "wo"}}, Always: []Part32{{Text: "gate.weight"}}}
	var whole Float32Parts
	whole.Add("text_encoder", text)
	for _, c := range []struct {
		of           Float32Parts
		d            alloc.DType
		module, name string
		keeps        bool
	}{
		{text, alloc.Float16, "layer.0.wo", "weight", true},
		{text, alloc.BFloat16, "layer.0.wo", "weight", false},
		{text, alloc.BFloat16, "mlp.gate", "weight", true},
		{text, alloc.Float32, "mlp.gate", "weight", false},
		{text, alloc.Float16, "", "wo.weight", true}, // a tensor of a file, by its whole name
		{whole, alloc.Float16, "text_encoder.layer.0.wo", "weight", true},
		{whole, alloc.Float16, "unet.wo", "weight", false},
		{Float32Parts{}, alloc.Float16, "wo", "weight", false},
	} {
		assert.Equal(t, c.keeps, c.of.Keeps(c.d, c.module, c.name), "%v of %s.%s", c.d, c.module, c.name)
	}
}
