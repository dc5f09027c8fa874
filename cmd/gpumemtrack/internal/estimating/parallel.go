package estimating

import (
	"cmp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// parallelOptions are settings of training on several devices, beside the numbers of these.
type parallelOptions struct {
	sequence   string // --sp
	by         string // --sharded-by
	ends       bool
	computes   string // --compute-dtype
	expandable bool
	experts    int    // --ep
	runs       string // --experts
	bucket     int    // of DeepSpeed, in elements
	overlap    bool   // of DeepSpeed
	reuse      int    // of DeepSpeed, in elements
}

func (o *parallelOptions) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.sequence, "sp", "", "with --tp: sequence parallelism, which divides what --tp leaves whole by tokens; split layers gather their inputs `HOW`: "+strings.Join(sequences, ", ")+" (in the backward pass, as Megatron-LM does)")
	flags.StringVar(&o.by, "sharded-by", "", "with --replicas and --zero: `WHAT` divides weights, gradients and states among replicas: "+strings.Join(sharders, ", ")+" (fsdp2 is PyTorch's fully_shard)")
	flags.BoolVar(&o.ends, "shard-ends", false, "with --sharded-by fsdp2: divide the embedding and the head by themselves, as torchtitan does; without it they stay gathered while a step runs")
	flags.StringVar(&o.computes, "compute-dtype", "", "element `TYPE` in which layers compute, whatever that of the weights (--dtype), as with the param_dtype of FSDP2")
	flags.IntVar(&o.experts, "ep", 1, "expert parallelism: `N` devices, of those of --replicas, share the experts of each layer of a mixture")
	flags.StringVar(&o.runs, "experts", "", "`HOW` the experts of mixtures run: "+strings.Join(runs, ", ")+" (one after another); default: as in transformers, where all of Llama 4 get every token")
	flags.IntVar(&o.bucket, "reduce-bucket-size", 0, "with --sharded-by deepspeed: its buffer of `N` gradients (default 500000000)")
	flags.BoolVar(&o.overlap, "overlap-comm", false, "with --sharded-by deepspeed: it sums up gradients while the backward pass runs, for which --zero 1 and 2 have two such buffers")
	flags.IntVar(&o.reuse, "max-reuse-distance", 0, "with --sharded-by deepspeed and --zero 3: parameters that are needed again within `N` stay whole (default 1000000000)")
	flags.BoolVar(&o.expandable, "expandable-segments", false, "PyTorch's allocator has expandable segments (PYTORCH_ALLOC_CONF, expandable_segments:True)")
}

// sequences lists the values of --sp.
var sequences = []string{"kept", "again"}

// sharders lists the values of --sharded-by.
var sharders = []string{"fsdp2", "deepspeed"}

// runs lists the values of --experts.
var runs = []string{"grouped", "loop"}

// shardingOf returns the option for several devices.
func shardingOf(o estimateOptions) (estimate.Option, error) {
	s := estimate.Sharding{Data: o.replicas, ZeRO: o.zero, Tensor: o.tp, Pipeline: o.training.pipeline}
	if s.Pipeline > 1 {
		s.MicroBatches = o.accumulate
	}
	var err error
	if s.Sequence, err = oneOf("sp", o.parallel.sequence, sequences); err != nil {
		return nil, err
	}
	s.By, err = oneOf("sharded-by", o.parallel.by, sharders)
	if given := o.flagSet != nil && o.flagSet.Changed("sharded-by"); err == nil && given && o.replicas > 1 && o.zero == 0 {
		err = cli.UsageError("estimate: --sharded-by %s needs --zero, the stage by which replicas share: --zero 3 divides weights, gradients and states, as fully_shard does", s.By)
	}
	s.Experts = o.parallel.experts
	if devices := max(1, o.replicas) * max(1, o.tp); err == nil && s.Experts > devices && !o.training.minReplicas {
		return nil, cli.UsageError("estimate: --ep %d needs as many devices that share the experts, and --replicas and --tp give %d: give --replicas %d, or --tp %d", s.Experts, devices, s.Experts, s.Experts)
	}
	s.Ends, s.Bucket, s.Overlap, s.Reuse = o.parallel.ends, o.parallel.bucket, o.parallel.overlap, o.parallel.reuse
	return s, err
}

// computingOf returns the options for a type of computing that is not that of the weights.
func computingOf(o estimateOptions) ([]estimate.Option, error) {
	var options []estimate.Option
	if o.parallel.expandable {
		options = append(options, estimate.ExpandableSegments())
	}
	how, err := oneOf("experts", o.parallel.runs, runs)
	if err != nil {
		return nil, err
	}
	options = append(options, estimate.RunsExperts(how))
	d, err := pickType("compute-dtype", o.parallel.computes)
	switch {
	case err != nil || d == 0:
		return options, err
	case !computes(d):
		return nil, cli.UsageError("estimate: --compute-dtype %s: want one of %s", o.parallel.computes, strings.Join(usualTypes, ", "))
	case o.autocast != "":
		return nil, cli.UsageError("estimate: choose one of --compute-dtype and --autocast, which keeps the weights' type for what it does not cast")
	}
	weights, err := pickType("dtype", o.dtype)
	if err != nil {
		return nil, err
	}
	weights = cmp.Or(weights, alloc.Float32)
	return append(options, estimate.Precision(d), estimate.Weights(weights), estimate.Gradients(weights)), nil
}
