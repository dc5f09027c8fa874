package enginelog

import (
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// pattern is a line of an engine's log.
type pattern struct {
	engine Engine
	has    string // words that the line has: they cost less to look for than the expression
	re     *regexp.Regexp
	take   func(s *scanner, m []string) // m is the match and its groups
}

// say makes a pattern. In the expression, NUM stands for a number with or without commas, SIZE for a number and a unit,
// which are two groups.
func say(engine Engine, has, expression string, take func(s *scanner, m []string)) pattern {
	expression = strings.ReplaceAll(expression, "SIZE", `(-?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?) ?([KMGTkmgt]?i?B|bytes)\b`)
	expression = strings.ReplaceAll(expression, "NUM", `([0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?)`)
	return pattern{engine, has, regexp.MustCompile(expression), take}
}

// scanner goes through the lines of a log.
type scanner struct {
	patterns []pattern
	reports  []*Report
	now      *Report // that the lines belong to; nil before the first
	fitting  bool    // llama.cpp prints what it expects, not what it has
	number   int     // of the line
	text     string  // of the line
	phase    Part    // of llama.cpp: what it allocates now
	label    string  // of the measurements that follow

	ollamaVersion string
	totals        map[string]*alloc.Bytes // of devices, for all models that ollama loads
}

var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]|\\u001b\[[0-9;]*m`)

// plain returns a line without the codes of a terminal, and without the backslashes of JSON around quotes.
func plain(line string) string {
	if strings.Contains(line, "\x1b") || strings.Contains(line, `\u001b`) {
		line = escapes.ReplaceAllString(line, "")
	}
	return strings.ReplaceAll(line, `\"`, `"`)
}

func (s *scanner) read(number int, line string) {
	s.number, s.text = number, line
	for _, p := range s.patterns {
		if !strings.Contains(line, p.has) {
			continue
		}
		if m := p.re.FindStringSubmatch(line); m != nil {
			p.take(s, m)
		}
	}
}

// begin begins a report of another start of an engine.
func (s *scanner) begin(engine Engine) *Report {
	s.end()
	s.now = &Report{Engine: engine, Line: s.number}
	s.phase, s.fitting = "", false
	return s.now
}

// end ends the report that is being read.
func (s *scanner) end() {
	if s.now != nil && !s.now.empty() && len(s.reports) < maxReports {
		if s.now.Engine == Ollama {
			s.now.Version = s.ollamaVersion
			for _, d := range s.now.Devices {
				keep(&d.Total, s.totals[d.Name])
			}
		}
		s.reports = append(s.reports, s.now)
	}
	s.now = nil
}

// report returns the report that is being read, of that engine.
func (s *scanner) report(engine Engine) *Report {
	if s.now == nil || s.now.Engine != engine && !(s.now.Engine == Ollama && engine == LlamaCpp) {
		return s.begin(engine)
	}
	return s.now
}

// maxBytes is more than any machine has, and so little that all rows of a report can be added up.
const maxBytes = 1 << 50

// size reads a number and its unit. GB is GiB: all of these programs divide by powers of 1024.
func size(number, unit string) *alloc.Bytes {
	f, err := strconv.ParseFloat(strings.ReplaceAll(number, ",", ""), 64)
	if err != nil {
		return nil
	}
	switch strings.ToUpper(unit[:1]) {
	case "K":
		f *= 1 << 10
	case "M":
		f *= 1 << 20
	case "G":
		f *= 1 << 30
	case "T":
		f *= 1 << 40
	}
	if math.Abs(f) > maxBytes {
		return nil
	}
	n := alloc.Bytes(math.Round(f))
	return &n
}

// count reads a number without a unit; nil if it is none that a program prints.
func count(number string) *int64 {
	n, err := strconv.ParseInt(strings.ReplaceAll(number, ",", ""), 10, 64)
	if err != nil || n < 0 || n > maxBytes {
		return nil
	}
	return &n
}

func fraction(number string) *float64 {
	f, err := strconv.ParseFloat(strings.ReplaceAll(number, ",", ""), 64)
	if err != nil || f < 0 || f > maxBytes {
		return nil
	}
	return &f
}

// keep sets *into to a value that is known.
func keep[T any](into **T, value *T) {
	if value != nil {
		*into = value
	}
}

// least keeps the smaller of two values: what fits on the rank that has least.
func least(into **int64, value *int64) {
	if value != nil && (*into == nil || *value < **into) {
		*into = value
	}
}

// onHost recognises the buffers of llama.cpp that lie in the machine's memory: CPU, CPU_Mapped, CUDA_Host, BLAS.
func onHost(name string) bool {
	return strings.HasPrefix(name, "CPU") || strings.HasSuffix(name, "_Host") || name == "Host" || name == "BLAS" || name == "ACCEL" || name == "AMX"
}
