package inputs

// readsFiles are the commands that read live memory and histories.
var readsFiles = []string{"show", "explain", "diff", "leaks", "layers", "replay", "convert"}

// Measured is estimate with the flag that compares a model with a run of it: the files of runs are not those of models.
const Measured = "estimate --measured"

// What this module writes.
var (
	Dump = &Kind{
		Name: "dump", What: "a dump", Source: "tracker.Dump, attach, a live page",
		Takes: append(readsFiles, Measured),
		is:    func(h *Head) bool { return h.schema("gpumemtrack.dump") },
	}
	Snapshot = &Kind{
		Name: "snapshot", What: "a snapshot", Source: "tracker.Snapshot",
		Takes: append(readsFiles, Measured),
		is:    func(h *Head) bool { return h.schema("gpumemtrack.snapshot") },
	}
	Recording = &Kind{
		Name: "recording", What: "a recording of GPU memory", Source: "gpumemtrack record",
		Takes: []string{"chart"},
		is:    func(h *Head) bool { return h.schema("gpumemtrack.recording/") || h.Begins("time_seconds,gpu") },
	}
	Profile = &Kind{
		Name: "pprof", What: "a pprof profile", Source: "Go, JAX, and convert",
		Takes: []string{"show", "diff", "convert"},
		is:    func(h *Head) bool { return h.Begins("\x0a") && h.hasControls() },
	}
)

var own = []*Kind{Dump, Snapshot, Recording, Profile}
