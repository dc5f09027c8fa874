package layer

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// Each layer of package nn has one here, with the same fields.
func TestEveryPublicLayerIsConverted(t *testing.T) {
	values := []nn.Layer{
		nn.ReLU{}, nn.PReLU(0),
		nn.Conv1d{}, nn.Conv2d{}, nn.Conv3d{}, nn.Linear{}, nn.Embedding{}, nn.RNN{}, nn.LSTM{}, nn.GRU{}, nn.Attention{}, nn.Dropout{},
		nn.CrossEntropy{}, nn.CTC(0), nn.NextToken{},
		nn.BatchNorm(0), nn.LayerNorm{}, nn.GroupNorm{}, nn.InstanceNorm{}, nn.RMSNorm(0), nn.LocalResponseNorm(0), nn.MaxPool{}, nn.AvgPool{},
		nn.AdaptiveAvgPool(0), nn.AdaptiveMaxPool(0), nn.Flatten{}, nn.Reshape{}, nn.Upsample(0), nn.PixelShuffle(0), nn.ZeroPad2d{}, nn.Permute{},
		nn.Sequential{}, nn.Residual{}, nn.Concat{}, nn.Module{},
	}
	tried := map[string]bool{"Class": true} // which names others
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

// The classes that a Class names are layers of these kinds.
func TestNamedClasses(t *testing.T) {
	others := map[string]string{"SmoothL1Loss": "Huber", "Dropout1d": "ChannelDropout", "Dropout2d": "ChannelDropout", "Dropout3d": "ChannelDropout"}
	for class := range classes {
		name, inPlace := strings.CutSuffix(string(class), "(inplace=True)")
		made := From([]nn.Layer{class})[0]
		assert.Equal(t, setting.Or(others[name], strings.TrimSuffix(name, "Loss")), tape.KindOf(made))
		if inPlace {
			assert.True(t, reflect.ValueOf(made).FieldByName("InPlace").Bool(), class)
		}
	}
	for want, l := range map[string]nn.Layer{
		`Class is "Softplus": want one of BCEWithLogitsLoss, Dropout1d, Dropout2d, Dropout3d, ELU, GELU, Hardsigmoid, Hardswish, HuberLoss, Identity, KLDivLoss, L1Loss, LeakyReLU, LogSoftmax, MSELoss, Mish, NLLLoss, ReLU6, SiLU, Sigmoid, SmoothL1Loss, Softmax, StochasticDepth, Tanh`: nn.Class("Softplus"),
		"Uneven has [1 2 3]: want one number for each dimension, 2 at most": nn.Uneven(nn.Conv2d{}, nil, []int{1, 2, 3}, nil),
		"Uneven takes a convolution, a MaxPool or an AvgPool":               nn.Uneven(nn.ReLU{}, []int{1}, nil, nil),
	} {
		assert.Equal(t, tape.Wrong(want), From([]nn.Layer{l})[0])
	}
}

// Uneven sets the sides of each kind of window, and nothing else of it.
func TestUnevenWindows(t *testing.T) {
	kernel, stride, padding := [3]int{2}, [3]int{3}, [3]int{0}
	made := func(l nn.Layer) tape.Layer {
		return From([]nn.Layer{nn.Uneven(l, kernel[:1], stride[:1], padding[:1])})[0]
	}
	conv := Conv2d{In: 4, Out: 8, Kernels: kernel, Strides: stride}
	for want, l := range map[tape.Layer]nn.Layer{
		Conv1d(conv): nn.Conv1d{In: 4, Out: 8}, conv: nn.Conv2d{In: 4, Out: 8}, Conv3d(conv): nn.Conv3d{In: 4, Out: 8},
		ConvTranspose1d(conv): nn.Conv1d{In: 4, Out: 8, Transposed: true}, ConvTranspose2d(conv): nn.Conv2d{In: 4, Out: 8, Transposed: true},
		ConvTranspose3d(conv): nn.Conv3d{In: 4, Out: 8, Transposed: true},
		MaxPool{Ceil: true, Kernels: kernel, Strides: stride}: nn.MaxPool{Ceil: true}, AvgPool{Kernels: kernel, Strides: stride}: nn.AvgPool{},
	} {
		assert.Equal(t, want, made(l))
	}
}

// A loss of the head's logits in chunks, or made with its gradients, is a layer with the head.
func TestNextTokenWithTheHead(t *testing.T) {
	assert.Equal(t, []tape.Layer{NextToken{Fused: true}, HeadLoss{Chunks: 1, Loss: NextToken{Fused: true}}, HeadLoss{InForward: true}},
		From([]nn.Layer{nn.NextToken{Fused: true}, nn.NextToken{Fused: true, Chunks: 1}, nn.NextToken{InForward: true}}))
}
