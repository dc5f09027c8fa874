package zoo

import "github.com/gpumemtrack/gpumemtrack/estimate"

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
	image("vgg11", "VGG-11", 132863336, func() []estimate.Layer { return vgg(vggA, false) }),
	image("vgg11_bn", "VGG-11 with batch norm", 132868840, func() []estimate.Layer { return vgg(vggA, true) }),
	image("vgg13", "VGG-13", 133047848, func() []estimate.Layer { return vgg(vggB, false) }),
	image("vgg13_bn", "VGG-13 with batch norm", 133053736, func() []estimate.Layer { return vgg(vggB, true) }),
	image("vgg16", "VGG-16", 138357544, func() []estimate.Layer { return vgg(vggD, false) }),
	image("vgg16_bn", "VGG-16 with batch norm", 138365992, func() []estimate.Layer { return vgg(vggD, true) }),
	image("vgg19", "VGG-19", 143667240, func() []estimate.Layer { return vgg(vggE, false) }),
	image("vgg19_bn", "VGG-19 with batch norm", 143678248, func() []estimate.Layer { return vgg(vggE, true) }),
}

func vgg(channels []int, norm bool) []estimate.Layer {
	var features estimate.Sequential
	in := 3
	for _, out := range channels {
		if out == 0 {
			features = append(features, estimate.MaxPool{Kernel: 2})
			continue
		}
		features = append(features, estimate.Conv2d{In: in, Out: out, Kernel: 3, Padding: 1})
		if norm {
			features = append(features, estimate.BatchNorm{Features: out})
		}
		features = append(features, estimate.ReLU{InPlace: true})
		in = out
	}
	return []estimate.Layer{
		estimate.As("features", features),
		estimate.As("avgpool", estimate.AdaptiveAvgPool{Out: 7}),
		estimate.Flatten{},
		estimate.As("classifier", estimate.Sequential{
			estimate.Linear{In: 512 * 7 * 7, Out: 4096}, estimate.ReLU{InPlace: true}, estimate.Dropout{},
			estimate.Linear{In: 4096, Out: 4096}, estimate.ReLU{InPlace: true}, estimate.Dropout{},
			estimate.Linear{In: 4096, Out: 1000},
		}),
	}
}
