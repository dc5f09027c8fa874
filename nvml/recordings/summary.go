package recordings

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// summary reads the table that nvidia-smi prints without options, which has two lines for each GPU:
//
//	|   0  NVIDIA A100-SXM4-40GB          On  | 00000000:01:00.0 Off |                    0 |
//	| N/A   33C    P0              52W / 400W |  20001MiB / 40960MiB |     97%      Default |
//
// A line with the time stands above each table.
type summary struct {
	at     moment
	device nvml.Device
	begun  bool // the first line of a GPU was read
	seen   bool // the head of a table was read
}

// The lines of a GPU. Older drivers print persistence as On or Off before the bus, and M. for MIB.
var (
	summaryFirst  = regexp.MustCompile(`^\|\s+(\d{1,4})\s+(\S.*?)\s*\|\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s`)
	summarySecond = regexp.MustCompile(`^\|\s*(?:(\d+)%|N/A|ERR!)\s+(?:(\d+)C|N/A|ERR!)\s.*?(?:(\d+)W|N/A|ERR!|\?\?\?)?\s*/\s*(?:\d+W|N/A|ERR!)\s*\|\s*(?:(\d+)MiB|N/A)\s*/\s*(?:(\d+)MiB|N/A)\s*\|\s*(?:(\d+)%|N/A|ERR!)`)
	summaryTime   = regexp.MustCompile(`^(Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ 0-9]\d [0-9:]{8} \d{4}$`)
	persistence   = regexp.MustCompile(`\s+(On|Off|N/A|TCC|WDDM)$`)
)

// line takes a line of the table, and reports whether it is one.
func (s *summary) line(f *feed, clock *parser, text string) (bool, error) {
	switch {
	case text == "" || len(text) > maxSummary:
		return false, nil
	case text[0] == '+' && strings.Trim(text, "+-=") == "":
		return true, nil
	case text[0] != '|':
		if summaryTime.MatchString(text) {
			s.at = clock.parse(text)
			return true, nil
		}
		return false, nil
	}
	if m := summaryFirst.FindStringSubmatch(text); m != nil {
		index, _ := strconv.Atoi(m[1])
		s.device, s.begun = nvml.Device{Index: index, Name: persistence.ReplaceAllString(m[2], ""), BusID: m[3]}, true
		return true, nil
	}
	m := summarySecond.FindStringSubmatch(text)
	if m == nil || !s.begun {
		s.seen = s.seen || strings.Contains(text, "NVIDIA-SMI")
		return s.seen, nil
	}
	s.begun, f.format = false, formatSummary
	r := nvml.Reading{Device: s.device}
	var asked []nvml.Quantity
	for i, q := range []nvml.Quantity{nvml.FanSpeed, nvml.Temperature, nvml.Power, nvml.MemoryUsed, nvml.MemoryTotal, nvml.Utilization} {
		unit := []string{"%", "C", "W", "MiB", "MiB", "%"}[i]
		if !f.set(&r, q, m[i+1], unit) {
			asked = append(asked, q)
		}
	}
	return true, f.add(s.at, &r, 0, asked...)
}

// maxSummary is longer than a line of the table is.
const maxSummary = 256
