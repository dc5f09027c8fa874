package host

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// launchers are the environment variables by which launchers number the processes that they start.
// A launcher that may run inside another comes first. A batch script of Slurm has a SLURM_PROCID
// too, but only srun sets the size of its step.
var launchers = []struct{ rank, worldSize string }{
	{"RANK", "WORLD_SIZE"},
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
	{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
	{"PMI_RANK", "PMI_SIZE"},
	{"HOROVOD_RANK", "HOROVOD_SIZE"},
	{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
}

// Origin looks up what o does not say of this process. Rank and world size go together: one that is told
// is not completed by a launcher's.
func Origin(o snapshot.Origin) snapshot.Origin {
	host, _ := os.Hostname()
	o.Host = cmp.Or(o.Host, host)
	o.PID = cmp.Or(o.PID, os.Getpid())
	if exe, err := os.Executable(); err == nil {
		o.Program = cmp.Or(o.Program, filepath.Base(exe))
	}
	if o.Rank == nil && o.WorldSize == 0 {
		o.Rank, o.WorldSize = launchedRank()
	}
	return o
}

func launchedRank() (rank *int, worldSize int) {
	for _, l := range launchers {
		r, ok := numberIn(l.rank)
		if size, known := numberIn(l.worldSize); ok && known && r < size {
			return &r, size
		}
	}
	if r, ok := numberIn("RANK"); ok {
		return &r, 0
	}
	return nil, 0
}

// numberIn returns the number that an environment variable holds.
func numberIn(variable string) (int, bool) {
	n, err := strconv.ParseUint(os.Getenv(variable), 10, 31)
	return int(n), err == nil
}
