package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Loss is the loss with which transformers trains the model: NextToken of a decoder's logits, and
// CrossEntropy of those of other heads. It is nil for models without a head, and for
// classifiers of texts.
func (c Transformer) Loss() tape.Layer {
	switch {
	case c.Family == CLIP || c.Family == SigLIP || c.NoHead:
		return nil
	case c.Family.Seq2Seq() || c.MaskedLM:
		return layer.CrossEntropy{}
	case c.Family.Encoder() || c.Classes > 0:
		return nil
	}
	return layer.NextToken{}
}
