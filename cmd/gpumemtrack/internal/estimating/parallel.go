package estimating

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// parallelOptions are settings of training on several devices, beside the numbers of these.
type parallelOptions struct {
	sequence string // --sp
}

func (o *parallelOptions) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.sequence, "sp", "", "with --tp: sequence parallelism, which divides what --tp leaves whole by tokens; split layers gather their inputs `HOW`: "+strings.Join(sequences, ", ")+" (in the backward pass, as Megatron-LM does)")
}

// sequences lists the values of --sp.
var sequences = []string{"kept", "again"}

// sharding returns the option for several devices.
func (o estimateOptions) sharding() (estimate.Option, error) {
	s := estimate.Sharding{Data: o.replicas, ZeRO: o.zero, Tensor: o.tp, Pipeline: o.training.pipeline}
	if s.Pipeline > 1 {
		s.MicroBatches = o.accumulate
	}
	var err error
	s.Sequence, err = oneOf("sp", o.parallel.sequence, sequences)
	return s, err
}
