package zoo

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// The letters are those of the configurations in "Very Deep Convolutional
// Networks for Large-Scale Image Recognition" (arXiv:1409.1556, table 1), numbers
// are channels and 0 is a pooling.
var (
	vggA = []int{64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0}
	vggB = []int{64, 64, 0, 128, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0}
	vggD = []int{64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0}
	vggE = []int{64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0}
)

var vggs = []entry{
	image("vgg11", "VGG-11", 132863336, func() []tape.Layer { return vgg(vggA, false) }),
	image("vgg11_bn", "VGG-11 with batch norm", 132868840, func() []tape.Layer { return vgg(vggA, true) }),
	image("vgg13", "VGG-13", 133047848, func() []tape.Layer { return vgg(vggB, false) }),
	image("vgg13_bn", "VGG-13 with batch norm", 133053736, func() []tape.Layer { return vgg(vggB, true) }),
	image("vgg16", "VGG-16", 138357544, func() []tape.Layer { return vgg(vggD, false) }),
	image("vgg16_bn", "VGG-16 with batch norm", 138365992, func() []tape.Layer { return vgg(vggD, true) }),
	image("vgg19", "VGG-19", 143667240, func() []tape.Layer { return vgg(vggE, false) }),
	image("vgg19_bn", "VGG-19 with batch norm", 143678248, func() []tape.Layer { return vgg(vggE, true) }),
}

func vgg(channels []int, norm bool) []tape.Layer {
	var features tape.Sequential
	in := 3
	for _, out := range channels {
		if out == 0 {
			features = append(features, layer.MaxPool{Kernel: 2})
			continue
		}
		features = append(features, layer.Conv2d{In: in, Out: out, Kernel: 3, Padding: 1})
		if norm {
			features = append(features, layer.BatchNorm{Features: out})
		}
		features = append(features, layer.ReLU{InPlace: true})
		in = out
	}
	return []tape.Layer{
		tape.As("features", features),
		tape.As("avgpool", layer.AdaptiveAvgPool{Out: 7}),
		layer.Flatten{},
		tape.As("classifier", tape.Sequential{
			layer.Linear{In: 512 * 7 * 7, Out: 4096}, layer.ReLU{InPlace: true}, layer.Dropout{},
			layer.Linear{In: 4096, Out: 4096}, layer.ReLU{InPlace: true}, layer.Dropout{},
			layer.Linear{In: 4096, Out: 1000},
		}),
	}
}
