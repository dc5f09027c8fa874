package layer

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// The losses in this file are those with which transformers trains heads that do not predict the next token
// (loss/loss_utils.py, and the forward methods of the models in 5.24).

// WideEntropy is CrossEntropy of logits that are converted to float32 first (ForMaskedLMLoss, ForTokenClassification).
type WideEntropy struct{}

func (WideEntropy) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	Judge(t, x)
	wide := t.In(alloc.Float32, x)
	loss := CrossEntropy{}.Forward(t, wide)
	t.Hold(wide) // a variable of the function holds it
	return loss
}

// OfLastToken is a loss of the logits that a classifier makes of each text's last token; it makes them of all tokens
// (GenericForSequenceClassification).
type OfLastToken struct{ Loss tape.Layer }

func (l OfLastToken) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, classes)")
	index := tape.Own{Shape: x.Shape[:1], DType: alloc.Int64} // of texts, and of tokens
	picked := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Shape[0], x.Shape[2]}, KeepOwn: []tape.Own{index, index}})
	Judge(t, picked) // what the model returns
	return l.Loss.Forward(t, picked)
}

// SpanEntropy is the loss of a head that finds the first and the last token of an answer: the mean of a CrossEntropy over
// the tokens for each (ForQuestionAnsweringLoss).
type SpanEntropy struct{}

func (SpanEntropy) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, 2)")
	t.Width(x, -1, 2, "scores of a token, as the first and as the last")
	var ends [2]tape.Tensor
	for i := range ends {
		ends[i] = t.Op(tape.Op{In: []tape.Tensor{x}, Shape: slices.Clone(x.Shape[:2])})
	}
	Judge(t, ends[:]...) // what the model returns
	first := CrossEntropy{}.Forward(t, ends[0])
	last := CrossEntropy{}.Forward(t, ends[1])
	return t.Scale(t.Sum(first, last))
}

// Transcript is CTC over (batch, steps, letters): the logarithms of the probabilities are made in float32
// (Wav2Vec2ForCTC). A transcript has LettersOfStep letters for each step.
type Transcript struct{}

// LettersOfStep is about how many letters are spoken in a step of 20 ms: 15 a second.
const LettersOfStep = 0.3

func (Transcript) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, steps, letters)")
	Judge(t, x)
	log := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, DType: alloc.Float32, KeepOutput: true})
	letters := max(1, int(LettersOfStep*float64(min(x.Shape[1], setting.MaxField))))
	turned := t.View(log, x.Shape[1], x.Shape[0], x.Shape[2])
	return CTC(letters).Forward(t, turned)
}
