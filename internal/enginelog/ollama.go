package enginelog

import (
	"regexp"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// ollamaPatterns are the lines of ollama 0.1 to 0.17, of Go's log/slog. Its runner prints llama.cpp's lines between them
// where it holds llama.cpp; they belong to the same report.
func ollamaPatterns() []pattern {
	part := func(msg string, of Part) pattern {
		return say(Ollama, msg, `msg="`+msg+`" .*\b(?:device|buffer|backend)="?(\w+)"?.* size="SIZE"`, func(s *scanner, m []string) {
			s.report(Ollama).device(llamaDevice(m[1])).put(of, size(m[2], m[3]))
		})
	}
	return []pattern{
		say(Ollama, "(version ", `msg="Listening on \S+ \(version (\S{1,40})\)"`, func(s *scanner, m []string) { s.ollamaVersion = m[1] }),
		// discover/types.go: once for all models that are loaded later
		say(Ollama, "inference compute", `msg="inference compute" .*\bname=(\w+\d) .*total="SIZE"`, func(s *scanner, m []string) {
			if s.totals == nil {
				s.totals = make(map[string]*alloc.Bytes)
			}
			if len(s.totals) < MaxDevices {
				s.totals[m[1]] = size(m[2], m[3])
			}
		}),
		// llm/server.go: a model is loaded
		say(Ollama, "starting ", `msg="?starting (?:runner|llama server|ollama engine|go runner)"?`, func(s *scanner, _ []string) { ollamaBegins(s) }),
		// llm/memory.go until 0.12: what ollama expects.
		say(Ollama, "layers.offload", `msg="?offload(?: to \w+)?"? .*layers\.model=NUM layers\.offload=NUM`, func(s *scanner, m []string) {
			r := ollamaBegins(s)
			if len(r.Devices) > 0 {
				r = s.begin(Ollama)
			}
			r.Capacity.Layers, r.Capacity.OnDevice = count(m[1]), count(m[2])
			d := r.device("")
			for _, v := range ollamaExpects.FindAllStringSubmatch(s.text, 32) {
				n := size(v[2], v[3])
				switch v[1] {
				case "memory.required.kv":
					d.plan(Cache, n)
				case "memory.weights.total":
					d.plan(Weights, n)
				case "memory.graph.full":
					d.plan(Compute, n)
				case "projector.weights":
					d.plan(Projector, n)
				case "memory.required.full":
					if free := ollamaFree(s.text); n != nil && free != nil {
						r.Projects = &Projection{*n, *free}
					}
				}
			}
		}),
		// ml/device.go since 0.12, ml/backend/ggml/ggml.go before
		part("model weights", Weights),
		part("kv cache", Cache),
		part("compute graph", Compute),
		say(Ollama, "KvSize:", `\bKvSize:NUM\b`, func(s *scanner, m []string) { keep(&s.report(Ollama).Capacity.Context, count(m[1])) }),
		say(Ollama, "Parallel:", `\bParallel:NUM\b`, func(s *scanner, m []string) { keep(&s.report(Ollama).Capacity.MaxRequests, count(m[1])) }),
	}
}

var (
	ollamaExpects   = regexp.MustCompile(`([a-z]+(?:\.[a-z]+)+)="([0-9.]+) (\w{1,3})"`)
	ollamaAvailable = regexp.MustCompile(`memory\.available="\[([^\]]*)\]"`)
	ollamaSize      = regexp.MustCompile(`([0-9.]+) ([KMGT]?i?B)`)
)

// ollamaBegins begins a report if the one that is being read has a model already.
func ollamaBegins(s *scanner) *Report {
	r := s.report(Ollama)
	loaded := func(d *Device) bool {
		return slices.ContainsFunc(d.Rows, func(row Row) bool { return !row.Planned })
	}
	if r.Failure != nil || slices.ContainsFunc(r.Devices, loaded) {
		r = s.begin(Ollama)
	}
	return r
}

// ollamaFree adds up what is free on the devices of a line.
func ollamaFree(line string) *alloc.Bytes {
	m := ollamaAvailable.FindStringSubmatch(line)
	if m == nil {
		return nil
	}
	var sum alloc.Bytes
	for _, v := range ollamaSize.FindAllStringSubmatch(m[1], 64) {
		if n := size(v[1], v[2]); n != nil {
			sum += *n
		}
	}
	return &sum
}
