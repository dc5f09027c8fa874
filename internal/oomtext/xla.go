package oomtext

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// xlaFamily are the messages of XLA, which JAX, PyTorch/XLA and TensorFlow pass on. That of a TPU's compiler has tables: what
// the program needs, and its largest allocations.
var xlaFamily = &family{
	name:   "xla",
	takes:  []string{"bare", "cupy", "xla"},
	begins: []string{"RESOURCE_EXHAUSTED", "Resource exhausted: ", "Ran out of memory in memory space"},
	lines:  160,
	parse:  parseXLA,
	judge:  helpXLA,
}

var xlaFields = []field{
	{"trying to allocate", true, to(func(f *Failure) *alloc.Bytes { return &f.Requested })},
	{"Out of memory allocating", true, to(func(f *Failure) *alloc.Bytes { return &f.Requested })},
	{"ailed to allocate request for", true, to(func(f *Failure) *alloc.Bytes { return &f.Requested })},
	{"ailed to allocate", true, to(func(f *Failure) *alloc.Bytes { return &f.Requested })},
	{"Attempting to reserve", true, to(func(f *Failure) *alloc.Bytes { return &f.Requested })},
	{"Attempting to allocate", true, to(func(f *Failure) *alloc.Bytes { return &f.Requested })},
	{"Used", true, to(func(f *Failure) *alloc.Bytes { return &f.Requested })},
	{"hbm. Exceeded", false, to(func(f *Failure) *alloc.Bytes { return &f.Capacity })},
	{"vmem. Exceeded", false, to(func(f *Failure) *alloc.Bytes { return &f.Capacity })},
	{"free", false, to(func(f *Failure) *alloc.Bytes { return &f.Free })},
}

var (
	xlaSpace   = regexp.MustCompile(`Ran out of memory in memory space (\w+)`)
	xlaOrdinal = regexp.MustCompile(`on device ordinal (\d{1,4})`)
	xlaUsage   = regexp.MustCompile(`Total hbm usage >= (\S+): (?:reserved (\S+) )?(?:program (\S+) )?(?:arguments (\S+))?`)
	xlaLargest = regexp.MustCompile(`\d+\. Size: (\S+)(?: Operator: op_name="([^"]{0,400})"(?: source_file="([^"]{0,400})" source_line=(\d{1,9}))?)?(?: Shape: (\S+))?`)
)

func parseXLA(f *Failure, text string) bool {
	f.Source = "XLA"
	fill(f, text, xlaFields)
	if m := xlaOrdinal.FindStringSubmatch(text); m != nil {
		f.Device = "GPU " + m[1]
	}
	if m := xlaSpace.FindStringSubmatch(text); m != nil {
		f.Device, f.Purpose = "TPU", "a compiled program, in "+m[1]
	}
	if f.Requested < 0 && !strings.Contains(strings.ToLower(text), "memory") {
		return false // another resource
	}
	if m := xlaUsage.FindStringSubmatch(text); m != nil {
		f.Notes = append(f.Notes, fmt.Sprintf("in use: %s, of which program %s, arguments %s, reserved %s", amountWord(m[1]), amountWord(m[3]), amountWord(m[4]), amountWord(m[2])))
	}
	const most = 3
	for _, m := range xlaLargest.FindAllStringSubmatch(text, most) {
		note := "largest allocations: " + amountWord(m[1])
		if m[5] != "" {
			note += " " + m[5]
		}
		if m[2] != "" {
			note += " by " + m[2]
		}
		if m[3] != "" {
			note += " at " + m[3] + ":" + m[4]
		}
		f.Notes = append(f.Notes, note)
	}
	return true
}

// amountWord prints an amount as XLA writes it, such as 20.34G, in the words of this program.
func amountWord(word string) string {
	if all := quantities(strings.TrimRight(word, ":;,")); len(all) == 1 && all[0].bytes >= 0 {
		return all[0].bytes.String()
	}
	return "unknown"
}
