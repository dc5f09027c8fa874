package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// mobileNetV5 is the number of parameters of timm's mobilenetv5_300m_enc, the vision tower of Gemma 3n, as
// timm 1.0.31 makes it on PyTorch's meta device.
const mobileNetV5 = 294_126_912

// gemma3nVision is the vision tower of Gemma 3n, and what fits its output to the width of the text.
func (c Transformer) gemma3nVision(width int) []Layer {
	return []Layer{
		Named{"vision_tower", held{Learned{Name: "weights", Shape: alloc.Shape{mobileNetV5}}}},
		Named{"embed_vision", held{c.gemma3nEmbedder(width)}},
	}
}

// gemma3nAudio is the tower of sounds, a Conformer whose input are spectra of so many Channels.
func (c Transformer) gemma3nAudio(width int) []Layer {
	linear := func(in, out int) Layer { return Linear{In: in, Out: out, NoBias: true} }
	norm := RMSNorm{Size: c.Hidden}
	hidden := min(max(0, c.Hidden), maxField/4)
	feedForward := Sequential{norm, linear(hidden, 4*hidden), linear(4*hidden, hidden), norm}
	attention := Sequential{
		norm, Learned{Name: "per_dim_scale", Shape: alloc.Shape{hidden / max(1, c.Heads)}}, linear(hidden, hidden), // of the positions
		linear(hidden, hidden), linear(hidden, hidden), linear(hidden, hidden), linear(hidden, hidden), norm,
	}
	convolution := Sequential{norm, linear(hidden, 2*hidden), Conv1d{In: hidden, Out: hidden, Kernel: c.Patch, Groups: hidden, NoBias: true}, norm, linear(hidden, hidden)}
	const first, second = 128, 32
	return []Layer{
		Named{"audio_tower", held{Sequential{
			Conv2d{In: 1, Out: first, Kernel: 3, NoBias: true}, RMSNorm{Size: first},
			Conv2d{In: first, Out: second, Kernel: 3, NoBias: true}, RMSNorm{Size: second},
			linear(second*(min(c.Channels, maxField/second)/4), hidden),
			Named{"conformer", Repeat{N: c.Blocks, Layer: Sequential{feedForward, attention, convolution, feedForward, norm}}},
		}}},
		Named{"embed_audio", held{c.gemma3nEmbedder(width)}},
	}
}

// gemma3nEmbedder turns what a tower makes, and tokens that stand for it, to the width of the text.
func (c Transformer) gemma3nEmbedder(width int) Layer {
	return Sequential{
		Named{"embedding", Embedding{Num: c.Vocab, Dim: c.Hidden}},
		Named{"hard_embedding_norm", RMSNorm{Size: c.Hidden}},
		Named{"soft_embedding_norm", RMSNorm{Size: c.Hidden}},
		Named{"embedding_projection", Linear{In: c.Hidden, Out: width, NoBias: true}},
	}
}
