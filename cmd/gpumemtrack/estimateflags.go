package main

import (
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// options are those that every kind of model takes.
func (o estimateOptions) options() ([]estimate.Option, error) {
	var options []estimate.Option
	switch {
	case o.train && o.serve:
		return nil, usageError("estimate: choose --train or --serve, not both")
	case o.fits < 0:
		return nil, usageError("estimate: --fits cannot be negative")
	case o.llamaCpp && !o.serve:
		return nil, usageError("estimate: --llama-cpp is for --serve")
	case o.maxBatch && o.maxContext || (o.maxBatch || o.maxContext) && (o.fits == 0 || o.quantize) || o.maxContext && !o.serve:
		return nil, usageError("estimate: --max-batch needs --fits, --max-context needs --fits and --serve; neither goes with the other or with --best-quantization")
	case o.quantize && (o.fits == 0 || o.train || o.dtype != ""):
		return nil, usageError("estimate: --best-quantization needs --fits, and goes with neither --train nor --dtype")
	case o.train:
		optimizer, ok := named(optimizers, o.optimizer)
		if !ok {
			return nil, usageError("estimate: --optimizer %s: want one of %s", o.optimizer, strings.Join(optimizerNames(), ", "))
		}
		options = append(options, estimate.Train(optimizer))
	}
	if o.gpu != "" {
		gpu, ok := named(generations, o.gpu)
		if !ok {
			return nil, usageError("estimate: --gpu %s: want one of %s", o.gpu, strings.Join(generationNames(), ", "))
		}
		options = append(options, estimate.RunsOn(estimate.Machine{GPU: gpu}))
	}
	switch {
	case o.lora < 0 || o.qlora && o.lora == 0:
		return nil, usageError("estimate: give the rank of the adapters, such as --lora 16")
	case o.lora > 0:
		l := estimate.LoRA{Rank: o.lora, Targets: o.targets}
		if o.qlora {
			l.Base = estimate.NF4
		}
		options = append(options, estimate.Adapt(l))
	}
	quantized, err := o.quantized()
	if err != nil {
		return nil, err
	}
	if o.autocast != "" {
		d, err := parseDType(o.autocast)
		if err != nil {
			return nil, usageError("estimate: --autocast: %w", err)
		}
		options = append(options, estimate.Precision(alloc.Float32), estimate.Autocast(d))
	}
	loop, err := o.loop()
	if err != nil {
		return nil, err
	}
	options = append(options, loop...)
	options = append(options, estimate.Checkpointed(o.checkpoints...), estimate.Shard(estimate.Sharding{Data: o.replicas, ZeRO: o.zero, Tensor: o.tp}))
	if o.dtype != "" {
		d, err := parseDType(o.dtype)
		if err != nil {
			return nil, usageError("estimate: --dtype: %w", err)
		}
		if computes(d) {
			options = append(options, estimate.Precision(d))
		} else { // quantized weights are computed with in another type
			options = append(options, estimate.Weights(d))
		}
	}
	return append(options, quantized...), nil
}

// loop is what the flags say of the training loop.
func (o estimateOptions) loop() ([]estimate.Option, error) {
	l := estimate.Loop{MicroBatches: o.accumulate, InBackward: o.inBackward}
	if o.weightDecay {
		l.Decay = estimate.DecayUsed
	}
	offload := estimate.OffloadNone
	var ok bool
	if l.Form, ok = named(forms, o.form); o.form != "" && !ok {
		return nil, usageError("estimate: --optimizer-form %s: want one of %s", o.form, strings.Join(formNames(), ", "))
	}
	if l.ZeroGrad, ok = named(zeroGrads, o.zeroGrad); o.zeroGrad != "" && !ok {
		return nil, usageError("estimate: --zero-grad %s: want one of %s", o.zeroGrad, strings.Join(names(zeroGrads), ", "))
	}
	if offload, ok = named(offloads, o.offload); o.offload != "" && !ok {
		return nil, usageError("estimate: --offload %s: want one of %s", o.offload, strings.Join(names(offloads), ", "))
	}
	options := []estimate.Option{estimate.Loops(l), estimate.Offloaded(offload)}
	if o.pytorch != "" {
		major, minor, found := strings.Cut(o.pytorch, ".")
		a, errA := strconv.ParseUint(major, 10, 8)
		b, errB := strconv.ParseUint(minor, 10, 8)
		if !found || errA != nil || errB != nil || a == 0 {
			return nil, usageError("estimate: --pytorch %s: want a version such as 2.4", o.pytorch)
		}
		options = append(options, estimate.PyTorch(int(a), int(b)))
	}
	return options, nil
}

// buffer is the option for llama.cpp's compute buffer, if it is asked for.
func (o estimateOptions) buffer(tokens int, of func(estimate.LlamaCpp) (alloc.Bytes, error)) ([]estimate.Option, error) {
	if !o.llamaCpp {
		return nil, nil
	}
	n, err := of(estimate.LlamaCpp{Context: max(o.batch, 1) * tokens, Batch: o.microBatch, FlashAttention: o.flashAttention})
	return []estimate.Option{estimate.ComputedIn(n)}, err
}

// defaultTokens is the length of a text where nobody says it.
const defaultTokens = 512

func (o estimateOptions) tokens(usual int) int {
	if o.seq > 0 {
		return o.seq
	}
	return usual
}

// piece is how much of a prompt is read at once when text is served.
const piece = 512

// input is text as the flags want it.
func (o estimateOptions) input(usual int) estimate.Option {
	length := o.tokens(usual)
	if o.serve {
		length = min(length, piece)
	}
	return estimate.Tokens(max(o.batch, 1), length)
}

// cache sets how keys and values are stored.
func (o estimateOptions) cache(c *estimate.KVConfig, published alloc.DType) error {
	c.DType = o.cacheType(published)
	if o.kv == "" {
		return nil
	}
	var ok bool
	if c.Blocks, ok = named(kvBlocks, o.kv); ok {
		return nil
	}
	d, err := parseDType(o.kv)
	if err != nil {
		return usageError("estimate: --kv %s: want one of %s, or an element type", o.kv, strings.Join(names(kvBlocks), ", "))
	}
	c.DType = d
	return nil
}

// cacheType is the type of keys and values: that in which the model computes; 0 is
// the usual one.
func (o estimateOptions) cacheType(published alloc.DType) alloc.DType {
	if d, err := parseDType(o.dtype); err == nil && computes(d) {
		return d
	}
	return published
}
