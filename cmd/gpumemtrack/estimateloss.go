package main

import (
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// usualLoss is the loss that training takes where nobody says it.
const usualLoss = "usual"

// losses are those of a model's last layer, beside the usual one and none.
var losses = []choice[estimate.HeadLoss]{
	{usualLoss, estimate.HeadLoss{}}, {"fused", estimate.HeadLoss{Loss: estimate.NextToken{Fused: true}}},
	{"liger", estimate.HeadLoss{InForward: true}}, {"none", estimate.HeadLoss{}},
}

// lossOf are the options for the loss with which a language model is trained: the usual one,
// which is nil for models that have none, unless the flags say another.
func (o estimateOptions) lossOf(usual estimate.Layer) ([]estimate.Option, error) {
	l, ok := named(losses, o.loss)
	asked := o.loss != usualLoss || o.lossChunks > 1
	switch {
	case !ok:
		return nil, usageError("estimate: --loss %s: want one of %s", o.loss, strings.Join(names(losses), ", "))
	case asked && !o.train:
		return nil, usageError("estimate: --loss and --loss-chunks are for --train")
	case o.loss == "none" || usual == nil && !asked:
		return nil, nil
	case !asked:
		return []estimate.Option{estimate.WithLoss(usual)}, nil
	case usual != estimate.Layer(estimate.NextToken{}):
		return nil, usageError("estimate: --loss and --loss-chunks are for models that predict the next token")
	}
	l.Chunks = o.lossChunks
	return []estimate.Option{estimate.WithLoss(l)}, nil
}

// bases are the ways to store the weights of linear layers.
var bases = []choice[estimate.Base]{
	{"nf4", estimate.NF4}, {"nf4-double", estimate.NF4Double}, {"fp4", estimate.NF4}, {"int8", estimate.Int8Base}, {"gptq", estimate.GPTQBase},
}

// quantized is the option for quantized weights, if they are asked for.
func (o estimateOptions) quantized() ([]estimate.Option, error) {
	if o.base == "" {
		return nil, nil
	}
	b, ok := named(bases, o.base)
	if !ok {
		return nil, usageError("estimate: --quantize %s: want one of %s", o.base, strings.Join(names(bases), ", "))
	}
	if o.qlora || o.quantize || o.llamaCpp {
		return nil, usageError("estimate: --quantize goes with none of --qlora, --llama-cpp and --best-quantization")
	}
	return []estimate.Option{estimate.Quantize(estimate.Quantized{Base: b})}, nil
}
