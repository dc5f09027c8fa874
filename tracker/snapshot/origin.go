package snapshot

import (
	"fmt"
	"slices"
	"strings"
)

// Origin is the process that memory belongs to; it distinguishes the ranks of a distributed run. What is
// unknown is zero. It does not change.
//
// The rank is that of the launcher, by the first of these pairs of the environment
// in which the rank is below the number of ranks: RANK and WORLD_SIZE (torchrun),
// OMPI_COMM_WORLD_RANK and _SIZE (Open MPI), MV2_COMM_WORLD_RANK and _SIZE
// (MVAPICH), PMI_RANK and PMI_SIZE (MPICH, Intel MPI), HOROVOD_RANK and
// HOROVOD_SIZE, SLURM_PROCID and SLURM_STEP_NUM_TASKS (srun). A RANK alone counts
// where there is no pair. Of a program that learns its rank otherwise,
// Config.Origin tells it.
type Origin struct {
	Host      string `json:"host,omitempty"`
	PID       int    `json:"pid,omitempty"`
	Program   string `json:"program,omitempty"`    // the name of the executable
	Rank      *int   `json:"rank,omitempty"`       // from 0; nil if it is none of many. Do not write to it
	WorldSize int    `json:"world_size,omitempty"` // the number of ranks
}

// check finds what no process has.
func (o Origin) check() error {
	if o.PID < 0 || o.WorldSize < 0 || o.Rank != nil && (*o.Rank < 0 || o.WorldSize > 0 && *o.Rank >= o.WorldSize) {
		return fmt.Errorf("there is no such process: %v", o)
	}
	return nil
}

// String names the process: "train[4242], rank 3 of 8 on node-1".
func (o Origin) String() string {
	process, rank := o.Program, ""
	if o.PID != 0 {
		process += fmt.Sprintf("[%d]", o.PID)
	}
	if o.Rank != nil {
		rank = fmt.Sprintf("rank %d", *o.Rank)
		if o.WorldSize != 0 {
			rank += fmt.Sprintf(" of %d", o.WorldSize)
		}
	}
	return join(" on ", join(", ", process, rank), o.Host)
}

// join joins the words that are there.
func join(separator string, words ...string) string {
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), separator)
}
