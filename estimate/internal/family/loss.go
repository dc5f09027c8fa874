package family

import (
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Loss returns the loss with which transformers trains the model's class, if it is given labels. It is nil for
// classes without a head, and for those that have no loss.
func (a *Model) Loss() tape.Layer {
	switch class := a.class; {
	case a.MakesImages() && a.Images == nil:
		return nil
	case strings.HasSuffix(class, "WithTeacher"): // its two heads are for inference
		return nil
	case strings.HasSuffix(class, "ForTokenClassification"), strings.HasSuffix(class, "ForMaskedLM"):
		return a.ofTokens()
	case strings.HasSuffix(class, "ForQuestionAnswering"):
		return layer.SpanEntropy{}
	case strings.HasSuffix(class, "ForCTC"):
		return layer.Transcript{}
	case strings.HasSuffix(class, "ForNextSentencePrediction"), strings.HasSuffix(class, "ForMultipleChoice"):
		return layer.CrossEntropy{}
	case strings.HasSuffix(class, "ForImageClassification"), strings.HasSuffix(class, "ForSequenceClassification"):
		return a.ofClasses()
	case class == "ElectraForPreTraining":
		return layer.BCEWithLogits{}
	case class == "BertForPreTraining", class == "AlbertForPreTraining":
		return sentences{}
	case class == "BeitForMaskedImageModeling":
		return maskedTokens{}
	case strings.HasSuffix(class, "ForMaskedImageModeling"):
		return layer.MaskedPixels{Image: setting.Or(a.Image, 224), Patch: setting.Or(a.Patch, 16), Channels: setting.Or(a.Channels, 3)}
	case a.Images != nil:
		return nil
	}
	if a.Family.Encoder() && (strings.HasSuffix(a.class, "ForCausalLM") || strings.HasSuffix(a.class, "LMHeadModel")) {
		return layer.NextToken{}
	}
	return a.Transformer.Loss()
}

// ofTokens returns the loss of a class for each token.
func (a *Model) ofTokens() tape.Layer {
	if a.Wide || !a.Family.Encoder() && !a.Family.Seq2Seq() {
		return layer.WideEntropy{}
	}
	return layer.CrossEntropy{}
}

// ofClasses returns the loss of a class for each input. Decoders classify by the last token.
func (a *Model) ofClasses() tape.Layer {
	loss := tape.Layer(layer.CrossEntropy{})
	switch {
	case a.problem == "regression" || a.problem == "" && a.Classes == 1:
		loss = layer.MSE{}
	case a.problem == "multi_label_classification":
		loss = layer.BCEWithLogits{}
	}
	if a.Images != nil || a.Family.Encoder() || a.Family.Seq2Seq() {
		return loss
	}
	return layer.OfLastToken{Loss: loss}
}

// maskedTokens is BEiT's loss of the tokens of masked patches. Two of five patches are masked, as in its paper.
type maskedTokens struct{}

func (maskedTokens) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	layer.Judge(t, x)
	t.Rank(x, 3, "(batch, patches, tokens)")
	patches := x.Shape[:2]
	factors := tape.Own{Shape: patches} // of the patches and of what replaces the masked ones: see layer.MaskedPixels
	masked := max(1, x.Shape[0]*(x.Shape[1]*2/5))
	chosen := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{masked, x.Shape[2]}, KeepOwn: []tape.Own{factors, factors, {Shape: patches, DType: alloc.Bool}}})
	return layer.CrossEntropy{}.Forward(t, chosen)
}

// sentences is the loss of BERT's two heads for pretraining: of masked tokens, and of whether a sentence follows another.
type sentences struct{}

func (sentences) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	tokens := layer.CrossEntropy{}.Forward(t, x)
	follows := layer.CrossEntropy{}.Forward(t, *SentenceScores.Of(t))
	return t.Op(tape.Op{In: []tape.Tensor{tokens, follows}, Shape: alloc.Shape{}, PassGrad: true})
}

// SentenceScores holds the scores of a second head, which finds whether a sentence follows another.
var SentenceScores tape.Slot[tape.Tensor]
