package watch

import (
	"math"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// attachedSums is what the last line of JSON has of a process and device: its levels, and the call
// stacks that held most. The peak and the total of host memory are not known.
type attachedSums struct {
	Live       mem.Tally   `json:"live"`
	Peak       *mem.Tally  `json:"peak"`
	Total      *mem.Tally  `json:"total"`
	LiveStacks topOfStacks `json:"live_stacks"`
	PeakStacks topOfStacks `json:"peak_stacks"`
}

// topOfStacks is the largest call stacks, and the sum of the others.
type topOfStacks struct {
	Stacks []stackSum `json:"stacks"`
	Others stackRest  `json:"others"`
}

type stackRest struct {
	Stacks int `json:"stacks"`
	mem.Tally
}

type stackSum struct {
	Kind   mem.Kind      `json:"kind"`
	Memory *alloc.Memory `json:"memory"`
	mem.Tally
	Percent  float64   `json:"percent"`
	CallSite mem.Frame `json:"call_site"`
	Stack    mem.Stack `json:"stack"`
}

func sumsOf(s *snapshot.Snapshot) *attachedSums {
	out := attachedSums{Live: s.Live.Add(s.Host()), LiveStacks: largest(s, liveOf), PeakStacks: largest(s, peakOf)}
	if !s.Total.IsZero() {
		out.Peak, out.Total = &s.Peak, &s.Total
	}
	return &out
}

// largest returns the call stacks that held most. A line of JSON must stay of a size that readers take.
func largest(s *snapshot.Snapshot, at func(snapshot.Totals) mem.Tally) (out topOfStacks) {
	const most = 100
	top, others, rest := s.LargestStacks(at, most)
	sum := rest
	for _, one := range top {
		sum = sum.Add(one.Tally)
	}
	out.Stacks = make([]stackSum, 0, len(top))
	for _, one := range top {
		line := stackSum{
			Kind: one.Kind, Tally: one.Tally, CallSite: one.CallSite, Stack: one.Stack,
			Percent: math.Round(10*percentOf(one.Tally, sum)) / 10,
		}
		if one.Memory != alloc.UnknownMemory {
			line.Memory = &one.Memory
		}
		out.Stacks = append(out.Stacks, line)
	}
	out.Others = stackRest{others, rest}
	return out
}
