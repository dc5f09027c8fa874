package estimate

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// judged are the layers with the loss.
func withLoss(c *setting.Config, layers []tape.Layer) ([]tape.Layer, error) {
	loss, _ := c.Loss.(tape.Layer)
	if !c.Training || tape.IsNil(loss) || len(layers) == 0 {
		return layers, nil
	}
	all := append([]tape.Layer{}, layers...)
	head, ok := loss.(layer.HeadLoss)
	if !ok || head.Linear != (layer.Linear{}) {
		return append(all, tape.Named{Name: "loss", Layer: loss}), nil
	}
	last := &all[len(all)-1]
	l := tape.Unwrap(*last)
	if tape.IsNil(l) {
		return layers, nil // the declaration reports it
	}
	if head.Linear, ok = l.(layer.Linear); !ok {
		return nil, fmt.Errorf("estimate %s: WithLoss: a HeadLoss takes the place of a Linear, and the last layer is %s", c.Name, tape.KindOf(l))
	}
	if n, named := (*last).(tape.Named); named {
		*last = tape.Named{Name: n.Name, Layer: head}
	} else {
		*last = head
	}
	return all, nil
}

// WithLoss trains with a loss of what the layers return; what is served has none. A HeadLoss that
// has no sizes takes the place of the last layer, the head, which must be a Linear.
func WithLoss(l nn.Layer) Option {
	return func(c *setting.Config) { c.Loss = layer.From([]nn.Layer{l})[0] }
}
