package layer

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// Each layer of package nn has one here, with the same fields.
func TestEveryPublicLayerIsConverted(t *testing.T) {
	values := []nn.Layer{
		nn.ReLU{}, nn.ReLU6{}, nn.LeakyReLU{}, nn.ELU{}, nn.SiLU{}, nn.GELU{}, nn.Mish{}, nn.PReLU{}, nn.Hardswish{}, nn.Hardsigmoid{}, nn.Sigmoid{}, nn.Tanh{},
		nn.Softmax{}, nn.LogSoftmax{}, nn.Conv1d{}, nn.Conv2d{}, nn.Conv3d{}, nn.Linear{}, nn.Embedding{}, nn.RNN{}, nn.LSTM{}, nn.GRU{}, nn.Attention{}, nn.Dropout{},
		nn.ChannelDropout{}, nn.StochasticDepth{}, nn.CrossEntropy{}, nn.NLL{}, nn.MSE{}, nn.L1{}, nn.Huber{}, nn.KLDiv{}, nn.BCEWithLogits{}, nn.CTC{}, nn.NextToken{},
		nn.HeadLoss{}, nn.BatchNorm{}, nn.LayerNorm{}, nn.GroupNorm{}, nn.InstanceNorm{}, nn.RMSNorm{}, nn.LocalResponseNorm{}, nn.MaxPool{}, nn.AvgPool{},
		nn.AdaptiveAvgPool{}, nn.AdaptiveMaxPool{}, nn.Flatten{}, nn.Reshape{}, nn.Upsample{}, nn.PixelShuffle{}, nn.ZeroPad2d{}, nn.Identity{}, nn.Permute{},
		nn.Sequential{}, nn.Residual{}, nn.Concat{}, nn.Module{},
	}
	tried := map[string]bool{}
	for _, l := range values {
		name := reflect.TypeOf(l).Name()
		tried[name] = true
		made := From([]nn.Layer{l})[0]
		if assert.NotNil(t, made, name) {
			assert.Equal(t, name, reflect.TypeOf(made).Name())
		}
	}
	files, err := filepath.Glob("../../nn/*.go")
	require.NoError(t, err)
	public := regexp.MustCompile(`(?m)^func \(([A-Z]\w*)\) isLayer\(\)`)
	n := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, of := range public.FindAllStringSubmatch(string(text), -1) {
			n++
			assert.True(t, tried[of[1]], of[1])
		}
	}
	assert.Equal(t, len(values), n)
}
