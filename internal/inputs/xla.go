package inputs

import "strings"

// XLADump is what XLA writes for a compiled program.
var XLADump = &Kind{
	Name: "xla", What: "a dump of XLA", Source: "XLA_FLAGS=--xla_dump_to, of JAX and TensorFlow",

	Takes: []string{"show", "explain"},
	is: func(h *Head) bool {
		line := h.Line()
		for _, begin := range []string{"BufferAssignment:", "HloLiveRange (max ", "HloModule ", "Memory Space: "} {
			if strings.HasPrefix(line, begin) {
				return true
			}
		}
		return strings.HasPrefix(line, "Total bytes used: ") && h.Contains("cumulative_size; total_size")
	},
}

var xla = []*Kind{XLADump}
