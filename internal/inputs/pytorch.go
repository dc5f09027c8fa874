package inputs

import (
	"regexp"
	"slices"
)

// What PyTorch writes about its memory, logs apart.
var PyTorchSnapshot = &Kind{
	Name: "pytorch-snapshot", What: "a memory snapshot of PyTorch", Source: "torch.cuda.memory._dump_snapshot",
	Takes: append(readsFiles, Measured),
	is: func(h *Head) bool {
		if h.list {
			return h.members == nil || h.Has("total_size") || h.Has("address") || h.Has("action") || h.Has("blocks")
		}
		return isPickle(h) && !isLegacyTorchSave(h) && !isTorchDistributed(h) || slices.ContainsFunc([]string{"segments", "device_traces", "allocator_settings", "external_annotations"}, func(key string) bool { return h.Has(key) })
	},
}

// MemoryTimeline is before PyTorchSnapshot in the table: both may be a list of lists.
var MemoryTimeline = &Kind{
	Name: "memory-timeline", What: "a memory timeline of PyTorch's profiler", Source: "Profiler.export_memory_timeline, .json and .raw.json.gz",
	Takes: []string{"show", "diff", "chart"},
	is:    func(h *Head) bool { return h.List() && timelineBegin.MatchString(h.text) },
}

var timelineBegin = regexp.MustCompile(`^\[\s*\[\s*-?\d`)

var pytorch = []*Kind{MemoryTimeline, PyTorchSnapshot}

// isPickle recognises a pickle of a dict or a list. One of protocol 0 or 1 has no first byte that says so.
func isPickle(h *Head) bool {
	return slices.ContainsFunc([]string{"\x80", "(d", "(l", "}q", "]q"}, h.Begins)
}
