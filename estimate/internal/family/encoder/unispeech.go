package encoder

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// UniSpeech and UniSpeechSAT are wav2vec 2.0 without an adapter and with other heads for pretraining (transformers'
// modeling_unispeech.py and modeling_unispeech_sat.py).
var (
	UniSpeech = soundFamily("UniSpeech", family.Type{Name: "unispeech", Base: "UniSpeechModel", Read: func(c *family.Config, a *family.Model) {
		readSounds(c, a, soundStyle{module: "unispeech", heads: soundHeads{forCTC, forSounds, forSamples}, pretrained: uniSpeechPretraining})
	}})
	UniSpeechSAT = soundFamily("UniSpeech-SAT", family.Type{Name: "unispeech-sat", Base: "UniSpeechSatModel", Read: func(c *family.Config, a *family.Model) {
		readSounds(c, a, soundStyle{module: "unispeech_sat", heads: allSoundHeads, pretrained: uniSpeechSATPretraining, masks: true})
	}})
)

func uniSpeechPretraining(c family.Transformer, s *sounds) []tape.Layer {
	return []tape.Layer{
		s.codes.quantizer(s.widths[len(s.widths)-1]),
		tape.As("project_q", family.Held{Layer: layer.Linear{In: s.codes.width, Out: s.codes.projected}}),
		tape.As("project_hid", family.Held{Layer: layer.Linear{In: s.codes.projected, Out: c.Hidden}}),
		tape.As("ctc_proj", layer.Linear{In: c.Hidden, Out: s.classes}),
	}
}

func uniSpeechSATPretraining(c family.Transformer, s *sounds) []tape.Layer {
	return []tape.Layer{
		s.codes.quantizer(c.Hidden),
		tape.As("project_q", family.Held{Layer: layer.Linear{In: s.codes.width, Out: s.codes.projected}}),
		tape.As("project_hid", family.Held{Layer: layer.Linear{In: c.Hidden, Out: s.codes.projected}}),
		tape.As("speaker_proj", family.Held{Layer: layer.Linear{In: c.Hidden, Out: s.codes.width}}),
		tape.Inline(family.Held{Layer: singles{"label_embeddings_concat", alloc.Shape{s.clusters, s.codes.width}}}),
		tape.As("layer_norm_for_extract", layer.LayerNorm{Size: c.Hidden}),
	}
}
