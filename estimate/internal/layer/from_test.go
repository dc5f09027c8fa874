package layer

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// Each layer of package nn has one here, with the same fields.
func TestEveryPublicLayerIsConverted(t *testing.T) {
	values := []nn.Layer{
		nn.ReLU{}, nn.SiLU{}, nn.GELU{}, nn.PReLU(0), nn.Sigmoid{}, nn.Tanh{}, nn.Softmax{},
		nn.Conv1d{}, nn.Conv2d{}, nn.Conv3d{}, nn.Linear{}, nn.Embedding{}, nn.RNN{}, nn.LSTM{}, nn.GRU{}, nn.Attention{}, nn.Dropout{},
		nn.ChannelDropout{}, nn.StochasticDepth{}, nn.CrossEntropy{}, nn.CTC(0), nn.NextToken{},
		nn.BatchNorm{}, nn.LayerNorm{}, nn.GroupNorm{}, nn.InstanceNorm{}, nn.RMSNorm(0), nn.LocalResponseNorm(0), nn.MaxPool{}, nn.AvgPool{},
		nn.AdaptiveAvgPool(0), nn.AdaptiveMaxPool(0), nn.Flatten{}, nn.Reshape{}, nn.Upsample(0), nn.PixelShuffle(0), nn.ZeroPad2d{}, nn.Identity{}, nn.Permute{},
		nn.Sequential{}, nn.Residual{}, nn.Concat{}, nn.Module{},
	}
	tried := map[string]bool{"Activation": true, "Loss": true} // which name others
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
	assert.Equal(t, len(tried), n)
}

// The classes that an Activation and a Loss name are layers of these kinds.
func TestNamedClasses(t *testing.T) {
	for class := range activations {
		assert.Equal(t, class, tape.KindOf(From([]nn.Layer{nn.Activation{Name: class}})[0]))
	}
	assert.Equal(t, ReLU6{InPlace: true}, From([]nn.Layer{nn.Activation{Name: "ReLU6", InPlace: true}})[0])
	for class := range losses {
		kind := tape.KindOf(From([]nn.Layer{class})[0])
		assert.Contains(t, []string{kind + "Loss", "SmoothL1Loss"}, string(class))
	}
	for want, l := range map[string]nn.Layer{
		`Name is "Softplus": want one of ELU, Hardsigmoid, Hardswish, LeakyReLU, LogSoftmax, Mish, ReLU6`: nn.Activation{Name: "Softplus"},
		`a LogSoftmax is never InPlace`: nn.Activation{Name: "LogSoftmax", InPlace: true},
		`Loss is "MSE": want one of BCEWithLogitsLoss, HuberLoss, KLDivLoss, L1Loss, MSELoss, NLLLoss, SmoothL1Loss`: nn.Loss("MSE"),
	} {
		assert.Equal(t, tape.Wrong(want), From([]nn.Layer{l})[0])
	}
}

// A loss of the head's logits in chunks, or made with its gradients, is a layer with the head.
func TestNextTokenWithTheHead(t *testing.T) {
	assert.Equal(t, []tape.Layer{NextToken{Fused: true}, HeadLoss{Chunks: 1, Loss: NextToken{Fused: true}}, HeadLoss{InForward: true}},
		From([]nn.Layer{nn.NextToken{Fused: true}, nn.NextToken{Fused: true, Chunks: 1}, nn.NextToken{InForward: true}}))
}
