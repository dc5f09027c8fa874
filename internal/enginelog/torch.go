package enginelog

import (
	"regexp"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// deepspeedPatterns are what DeepSpeed 0.4 to 0.19 prints: the tables of estimate_zero2 and estimate_zero3, and
// see_memory_usage. Its GB are GiB.
func deepspeedPatterns() []pattern {
	return []pattern{
		// deepspeed/runtime/zero/stage_1_and_2.py, stage3.py
		say(DeepSpeed, "total params", `SW: Model with (NUM[KMB]? total params(?:, NUM[KMB]? largest layer params)?)`, func(s *scanner, m []string) {
			s.report(DeepSpeed).Model = label(m[1])
		}),
		say(DeepSpeed, "offload_", `^\W*SIZE \|\s*SIZE \| (.*offload_\w+=.*?)\s*$`, func(s *scanner, m []string) {
			r := s.report(DeepSpeed)
			if cpu, gpu := size(m[1], m[2]), size(m[3], m[4]); cpu != nil && gpu != nil && len(r.Plans) < maxPlans {
				r.Plans = append(r.Plans, Plan{Options: strings.Join(strings.Fields(strings.ReplaceAll(label(m[5]), " ,", ",")), " "), CPU: *cpu, GPU: *gpu, ModelSize: r.Model})
			}
		}),
		// deepspeed/runtime/utils.py: two lines, of which the first is the label.
		say(DeepSpeed, "see_memory_usage", `see_memory_usage\]\s*(\S.*)$`, func(s *scanner, m []string) {
			if !strings.Contains(m[1], "Max_CA") {
				s.label = label(m[1])
			}
		}),
		say(DeepSpeed, "Max_CA", `\bMA SIZE\s+Max_MA SIZE\s+CA SIZE\s+Max_CA SIZE`, func(s *scanner, m []string) {
			addMoment(s.report(DeepSpeed), Moment{
				Label: takeLabel(s), Allocated: size(m[1], m[2]), PeakAllocated: size(m[3], m[4]), Reserved: size(m[5], m[6]), PeakReserved: size(m[7], m[8]),
			})
		}),
	}
}

// torchPatterns are the lines of torchtitan 0.1 to 0.3 and of torchtune 0.2 to 0.6.
func torchPatterns() []pattern {
	tune := func(words string, of func(*Moment) **alloc.Bytes) pattern {
		return say(TorchTune, "peak memory "+words, `\w+ peak memory `+words+`: SIZE`, func(s *scanner, m []string) {
			r := s.report(TorchTune)
			if words == "allocation" || len(r.Moments) == 0 {
				addMoment(r, Moment{Label: takeLabel(s)})
			}
			keep(of(&r.Moments[len(r.Moments)-1]), size(m[1], m[2]))
		})
	}
	return []pattern{
		// torchtune/training/memory.py
		say(TorchTune, "Memory stats after", `(Memory stats after .*?):?\s*$`, func(s *scanner, m []string) { s.label = label(m[1]) }),
		// torchtitan/components/metrics.py
		say(TorchTitan, "capacity:", `\w+ capacity: \S.* with SIZE memory`, func(s *scanner, m []string) {
			r := s.report(TorchTitan)
			keep(&r.device(titanRank(s.text)).Total, size(m[1], m[2]))
		}),
		say(TorchTitan, "memory usage for model", `memory usage for model: SIZE`, func(s *scanner, m []string) {
			r := s.report(TorchTitan)
			r.device(titanRank(s.text)).put(Weights, size(m[1], m[2]))
		}),
		say(TorchTitan, "memory: ", `step:\s*(\d{1,12})\b.*memory:\s*SIZE\(`, func(s *scanner, m []string) {
			addMoment(s.report(TorchTitan), Moment{Label: "step " + m[1], Device: titanRank(s.text), PeakReserved: size(m[2], m[3])})
		}),
		tune("allocation", func(m *Moment) **alloc.Bytes { return &m.PeakAllocated }),
		tune("reserved", func(m *Moment) **alloc.Bytes { return &m.PeakReserved }),
		tune("active", func(m *Moment) **alloc.Bytes { return &m.PeakActive }),
	}
}

// addMoment keeps a measurement. Of more than the report has space for, the last place is that of the highest.
func addMoment(r *Report, m Moment) {
	if len(r.Moments) < maxMoments {
		r.Moments = append(r.Moments, m)
		return
	}
	r.Omitted++
	if last := &r.Moments[maxMoments-1]; m.Peak() > last.Peak() {
		*last = m
	}
}

// Peak returns the most of what a moment knows.
func (m *Moment) Peak() (most alloc.Bytes) {
	for _, n := range []*alloc.Bytes{m.PeakReserved, m.Reserved, m.PeakActive, m.PeakAllocated, m.Allocated} {
		if n != nil {
			most = max(most, *n)
		}
	}
	return most
}

var rankPrefix = regexp.MustCompile(`\[rank(\d{1,6})\]`)

// takeLabel returns the label of a measurement, which is for one only.
func takeLabel(s *scanner) string {
	text := s.label
	s.label = ""
	return text
}

// maxLabel is how much of a line is kept as a label.
const maxLabel = 200

// label returns the beginning of a text.
func label(text string) string {
	return strings.TrimSpace(strings.ToValidUTF8(text[:min(len(text), maxLabel)], ""))
}

// titanRank returns the rank of a line of torchrun: "[rank3]:" is rank 3.
func titanRank(line string) string {
	if m := rankPrefix.FindStringSubmatch(line[:min(len(line), 512)]); m != nil {
		return "rank " + m[1]
	}
	return ""
}
