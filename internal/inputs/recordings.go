package inputs

// Recordings and histories of other tools.
var TraceEvents = &Kind{
	Name: "trace", What: "a trace", Source: "convert, and profilers",
	Sign: `JSON with "traceEvents"`, Instead: "trace events are for a viewer such as ui.perfetto.dev: read the dump that they were made of",
	is: func(h *Head) bool { return h.Has("traceEvents") },
}

var recordings = []*Kind{TraceEvents}
