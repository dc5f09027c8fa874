package estimate

import "fmt"

// WithLoss trains with a loss of what the layers return; what is served has none. A HeadLoss that
// has no sizes takes the place of the last layer, the head, which must be a Linear.
func WithLoss(l Layer) Option { return func(c *config) { c.loss = l } }

// judged are the layers with the loss.
func (c *config) judged(layers []Layer) ([]Layer, error) {
	if !c.training || isNil(c.loss) || len(layers) == 0 {
		return layers, nil
	}
	all := append([]Layer{}, layers...)
	head, ok := c.loss.(HeadLoss)
	if !ok || head.Linear != (Linear{}) {
		return append(all, Named{"loss", c.loss}), nil
	}
	last := &all[len(all)-1]
	l := unwrap(*last)
	if isNil(l) {
		return layers, nil // the declaration reports it
	}
	if head.Linear, ok = l.(Linear); !ok {
		return nil, fmt.Errorf("estimate %s: WithLoss: a HeadLoss takes the place of a Linear, and the last layer is %s", c.name, kindOf(l))
	}
	if n, named := (*last).(Named); named {
		*last = Named{n.Name, head}
	} else {
		*last = head
	}
	return all, nil
}

// Loss is the loss with which transformers trains the model: NextToken of a decoder's logits, and
// CrossEntropy of those of other heads. It is nil for models without a head, and for
// classifiers of texts.
func (c Transformer) Loss() Layer {
	switch {
	case c.Family == CLIP || c.Family == SigLIP || c.NoHead:
		return nil
	case c.Family.Seq2Seq() || c.MaskedLM:
		return CrossEntropy{}
	case c.Family.Encoder() || c.Classes > 0:
		return nil
	}
	return NextToken{}
}
