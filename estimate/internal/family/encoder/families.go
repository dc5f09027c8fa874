package encoder

import "github.com/gpumemtrack/gpumemtrack/estimate/internal/family"

// Families are those of this package.
var Families = []*family.Family{
	BERT, RoBERTa, ALBERT, DeBERTa, DistilBERT, ELECTRA, ModernBERT, MPNet,
	RoBERTaPreLayerNorm, XLMRoBERTaXL, MegatronBERT, NomicBERT, GTE, JinaV3, EuroBERT, RemBERT, LayoutLM,
	Wav2Vec2, HuBERT, WavLM, UniSpeech, UniSpeechSAT, Data2VecAudio,
}
