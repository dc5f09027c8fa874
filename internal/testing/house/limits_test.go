package house

// rules are the imports that no file of a package may have, both as patterns of paths within the module.
var rules = []struct{ in, never, why string }{
	{`(alloc|tracker|estimate|nvml|contrib|internal)(/.*)?`, `(cmd|examples)(/.*)?`, "no package may depend on a command or an example"},
	{`(alloc|tracker|estimate|nvml|cmd|internal)(/.*)?`, `(contrib|examples)(/.*)?`, "nested modules keep their dependencies out of go.mod"},
	{`(alloc|tracker|estimate|nvml|cmd|contrib|examples)(/.*)?|internal(/[^/]*)?`, `internal/testing(/.*)?`, "test helpers are in no program"},
	{`internal(/[^/]*)?|internal/callstack/.*`, `(tracker|estimate|nvml)(/.*)?`, "what several packages share knows none of them"},
	{`alloc(/.*)?`, `(tracker|estimate|nvml)(/.*)?`, "devices and the allocator know no tracker"},
	{`tracker(/internal/.*)?`, `(estimate|nvml)(/.*)?|tracker/(live|attach|export|replay)(/.*)?`, "views depend on the tracker, and it on none of them"},
	{`tracker/(mem|snapshot|export|replay|attach)(/.*)?`, `tracker`, "they read and make values, whoever asked for them"},
	{`tracker/(mem|snapshot)(/.*)?`, `tracker/(live|attach|export|replay|internal/(ledger|report))(/.*)?`, "values know nothing of their makers and views"},
	{`tracker/(attach|export|replay)(/.*)?`, `tracker/live(/.*)?`, "the live page shows them, and none knows it"},
	{`tracker/export(/.*)?`, `tracker/(attach|replay)(/.*)?`, "formats know no source and no replay"},
	{`tracker/replay(/.*)?`, `tracker/(attach|export)(/.*)?`, "a replay reads values, not files"},
	{`tracker/attach(/.*)?`, `tracker/(export|replay)(/.*)?`, "what watches a process shows nothing"},
	{`estimate(/.*)?`, `(tracker|nvml|alloc/sim|alloc/cuda)(/.*)?`, "an estimate needs no device"},
	{`estimate/internal/(setting|timeline|tape|layer|peak|history)`, `estimate/internal/family(/.*)?`, "the engine names no model"},
	{`estimate/nn`, `estimate|estimate/internal/(layer|family)(/.*)?`, "layers are values that know nothing"},
	{`nvml(/.*)?`, `(tracker|estimate|alloc/cuda)(/.*)?`, "what the driver says stands by itself"},
}

// larger are packages above the measures, with the numbers that they have today: these only go down.
var larger = map[string]struct{ files, cycle int }{
	"estimate/internal/family": {files: 60}, // a family of decoders is a file, and transformers has more than a hundred
}

// opaque are internal types that stand in public signatures, and why a user need not name them.
var opaque = map[string]string{
	"internal/cachelock.Cache":         "the tracker's ledger and the cache change in one step",
	"estimate/internal/tape.Handle":    "nn.Flow is defined by it and hides all of it",
	"estimate/internal/setting.Config": "it closes the interface Option: only this module makes options",
}

// silent are types that hide fields and have no String, and why none is needed.
var silent = map[string]string{
	"alloc/cache.Config":         "a value",
	"estimate/checkpoint.File":   "its fields do not change",
	"estimate.Memory":            "a value",
	"estimate.Row":               "a value",
	"estimate/zoo.Model":         "its fields do not change",
	"nvml.Reading":               "a value",
	"nvml.Config":                "a value",
	"tracker/attach.Config":      "a value",
	"tracker/export.Usage":       "its fields do not change",
	"tracker/export/otlp.Config": "a value",
	"tracker/replay.Config":      "a value",
	"tracker/replay.Levels":      "a value",
}

// longFiles are files above the measure, each with the reason.
var longFiles = map[string]string{}
