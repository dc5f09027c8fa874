package inputs

import "slices"

// What PyTorch writes about its memory, logs apart.
var PyTorchSnapshot = &Kind{
	Name: "pytorch-snapshot", What: "a memory snapshot of PyTorch", Source: "torch.cuda.memory._dump_snapshot",
	Sign: `a pickle, or JSON with "segments" or "device_traces"`, Takes: append(readsFiles, "estimate"),
	is: func(h *Head) bool {
		if h.list {
			return h.members == nil || h.Has("total_size") || h.Has("address") || h.Has("action") || h.Has("blocks")
		}
		return isPickle(h) || slices.ContainsFunc([]string{"segments", "device_traces", "allocator_settings", "external_annotations"}, func(key string) bool { return h.Has(key) })
	},
}

var pytorch = []*Kind{PyTorchSnapshot}

// isPickle recognises a pickle of a dict or a list. One of protocol 0 or 1 has no first byte that says so.
func isPickle(h *Head) bool {
	return slices.ContainsFunc([]string{"\x80", "(d", "(l", "}q", "]q"}, h.Begins)
}
