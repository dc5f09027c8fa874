package estimating

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// known returns nil for an upper bound that does not exist.
func known(upper alloc.Bytes) *alloc.Bytes {
	if upper == estimate.Unbounded {
		return nil
	}
	return &upper
}

// atMost is an upper bound as a cell of a table.
func atMost(upper alloc.Bytes) any {
	if upper == estimate.Unbounded {
		return "unknown"
	}
	return upper
}

// cannotKnow is the error of a question whose answer depends on a part that is not counted.
func cannotKnow(name, budget string, r *estimate.Report) error {
	return cli.Exit(cli.ExitUnknown, fmt.Errorf("cannot know: %s, so whether %s fits in %s is open%s", notCounted(r), name, budget, counting(r)))
}

// notCounted says what the values leave out.
func notCounted(r *estimate.Report) string {
	verb := "is"
	if len(r.Missing) > 1 {
		verb = "are"
	}
	return fmt.Sprintf("%s %s not counted", strings.Join(r.Missing, " and "), verb)
}

// counting says which flag counts what is not.
func counting(r *estimate.Report) string {
	if slices.Contains(r.Missing, estimate.MissingTower) {
		return ": --images N or --sounds N counts it, and --images 0 says that no text has any"
	}
	return ""
}

// much is the share of the answer from which on a term is printed without --detail.
const much = 0.02

// writeBounds prints why the upper bound is higher than the estimate: the largest term and all others that matter, or with
// detail all terms, with how much less there may be.
func writeBounds(w io.Writer, r *estimate.Report, m estimate.Memory, detail bool) {
	if len(r.Missing) > 0 {
		fmt.Fprintf(w, "There is no upper bound: %s%s.\n", notCounted(r), counting(r))
	}
	if len(m.Uncertain) == 0 {
		return
	}
	if detail {
		fmt.Fprintln(w, "What is uncertain:")
		for _, t := range m.Uncertain {
			fmt.Fprintf(w, "  %v\n", t)
		}
		return
	}
	n := max(m.Peak.Bytes, m.Footprint.Needed.Bytes)
	var all, others alloc.Bytes
	var lines strings.Builder
	for i, t := range m.Uncertain { // the largest is the first
		all += t.More
		if i > 0 && float64(t.More) < much*float64(n) {
			others += t.More
			continue
		}
		fmt.Fprintf(&lines, "  %v for %s: %s\n", t.More, t.Of, t.Reason)
	}
	if others > 0 {
		fmt.Fprintf(&lines, "  %v for others, which --detail lists\n", others)
	}
	of := "the estimate"
	if len(r.Missing) > 0 {
		of = "that for what is counted"
	}
	if all > 0 {
		fmt.Fprintf(w, "At most %v more than %s:\n%s", all, of, lines.String())
	}
}
