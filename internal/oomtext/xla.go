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
	{"free", false, to(func(f *Failure) *alloc.Bytes { return &f.Free })},
}

var (
	xlaSpace   = regexp.MustCompile(`Ran out of memory in memory space (\w+)`)
	xlaOrdinal = regexp.MustCompile(`on device ordinal (\d{1,4})`)
	xlaUsed    = regexp.MustCompile(`Used (\S{1,20}) of (\S{1,20}) \w+\.(?: Exceeded \w+ capacity by (\S{1,20}))?`)
	xlaUsage   = regexp.MustCompile(`Total hbm usage >= (\S+): (?:reserved (\S+) )?(?:program (\S+) )?(?:arguments (\S+))?`)
	xlaStats   = regexp.MustCompile(`parameter allocation: (\S+) constant allocation: \S+ maybe_live_out allocation: (\S+) preallocated temp allocation: (\S+) total allocation: (\S+)`)
	xlaLargest = regexp.MustCompile(`(?:\d+\.|Buffer \d+:) Size: (\S+)(?: Operator: op_name="([^"]{0,400})"(?: source_file="([^"]{0,400})" source_line=(\d{1,9}))?)?(?: XLA Label: \S{1,80})?(?: Shape: (\S+))?`)
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
	if m := xlaUsed.FindStringSubmatch(text); m != nil {
		f.Requested, f.Capacity = oneAmount(m[1]), oneAmount(m[2])
		if beyond := oneAmount(m[3]); beyond > 0 && f.Requested <= f.Capacity { // its decimals do not show it
			f.Requested = f.Capacity + beyond
		}
	}
	if lower := strings.ToLower(text); f.Requested < 0 && !strings.Contains(lower, "out of memory") && !strings.Contains(lower, "allocat") {
		return false // another resource
	}
	if m := xlaUsage.FindStringSubmatch(text); m != nil {
		f.Notes = append(f.Notes, fmt.Sprintf("in use: %s, of which program %s, arguments %s, reserved %s", amountWord(m[1]), amountWord(m[3]), amountWord(m[4]), amountWord(m[2])))
	}
	if m := xlaStats.FindStringSubmatch(text); m != nil {
		f.Notes = append(f.Notes, fmt.Sprintf("the program needs %s: parameters %s, results %s, temporary %s", amountWord(m[4]), amountWord(m[1]), amountWord(m[2]), amountWord(m[3])))
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

// oneAmount returns an amount as XLA writes it, such as 20.34G; unknown if it is none.
func oneAmount(word string) alloc.Bytes {
	if all := quantities(strings.TrimRight(word, ":;,.")); len(all) == 1 {
		return all[0].bytes
	}
	return unknown
}

// amountWord prints an amount as XLA writes it, such as 20.34G, in the words of this program.
func amountWord(word string) string {
	if n := oneAmount(word); n >= 0 {
		return n.String()
	}
	return "unknown"
}
