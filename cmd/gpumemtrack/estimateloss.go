package main

import (
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/nn"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// lossOptions are the loss that training takes, and how linear layers that it does not train are stored.
type lossOptions struct {
	name   string
	chunks int
	base   string
}

// usualLoss is the loss that training takes where nobody says it.
const usualLoss = "usual"

// losses are those of a model's last layer, beside the usual one and none.
var losses = []choice[nn.HeadLoss]{
	{usualLoss, nn.HeadLoss{}}, {"fused", nn.HeadLoss{Loss: nn.NextToken{Fused: true}}},
	{"liger", nn.HeadLoss{InForward: true}}, {"none", nn.HeadLoss{}},
}

func (o *lossOptions) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.name, "loss", usualLoss, "`LOSS` with which a language model is trained: "+strings.Join(names(losses), ", ")+"; fused is that of torch.compile and Unsloth")
	flags.IntVar(&o.chunks, "loss-chunks", 1, "compute the logits and their loss for `N` parts of the tokens, as torchtune does")
	flags.StringVar(&o.base, "quantize", "", "store the weights of linear layers in `FORM`, and do not train them: "+strings.Join(names(bases), ", ")+" (fp4 takes as much as nf4)")
	complete(cmd, "loss", names(losses)...)
	complete(cmd, "quantize", names(bases)...)
}

// judged are the options for the loss with which a language model is trained: the usual one,
// which is nil for models that have none, unless the flags say another.
func (o estimateOptions) judged(usual nn.Layer) ([]estimate.Option, error) {
	l, err := pick("loss", o.loss.name, losses)
	asked := o.loss.name != usualLoss || o.loss.chunks > 1
	switch {
	case err != nil:
		return nil, err
	case !o.train || o.loss.name == "none" || usual == nil && !asked:
		return nil, nil
	case !asked:
		return []estimate.Option{estimate.WithLoss(usual)}, nil
	case usual != nn.Layer(nn.NextToken{}):
		return nil, usageError("estimate: --loss and --loss-chunks are for models that predict the next token")
	}
	l.Chunks = o.loss.chunks
	return []estimate.Option{estimate.WithLoss(l)}, nil
}

// quantized is the option for quantized weights, if they are asked for.
func (o estimateOptions) quantized() ([]estimate.Option, error) {
	base, err := pick("quantize", o.loss.base, bases)
	switch {
	case err != nil || o.loss.base == "":
		return nil, err
	case o.qlora || o.training.base != "" || o.quantize || o.llamaCpp:
		return nil, usageError("estimate: --quantize goes with none of --qlora, --lora-base, --llama-cpp and --best-quantization")
	}
	return []estimate.Option{estimate.Quantize(estimate.Quantized{Base: base})}, nil
}
