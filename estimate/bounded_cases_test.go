package estimate_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/cases"
)

// bounded counts how the bounds of today's answers hold, over the rows of some grades that have an upper bound.
type bounded struct {
	rows, above, below int
	widths             []float64 // the upper bound, as a multiple of the estimate
}

// total reports whether a row is all that a process takes, and not a part that an engine prints.
func total(c cases.Case) bool {
	return c["kind"] != "Parts of what engines hold" && c["upper_mib"] != ""
}

func boundsOf(t *testing.T, rows []cases.Case, grades string) (b bounded) {
	t.Helper()
	for _, c := range rows {
		if !total(c) || !strings.Contains(grades, c["grade"]) {
			continue
		}
		b.rows++
		b.widths = append(b.widths, c.MiB(t, "upper_mib")/c.MiB(t, "today_mib"))
		switch measured := c.MiB(t, "measured_mib"); {
		case measured > c.MiB(t, "upper_mib"):
			b.above++
		case measured < c.MiB(t, "lower_mib"):
			b.below++
		}
	}
	require.NotZero(t, b.rows)
	slices.Sort(b.widths)
	return b
}

// median is the upper bound of the row in the middle, as a multiple of its estimate.
func (b bounded) median() float64 { return b.widths[len(b.widths)/2] }

func (b bounded) row(settings string) string {
	return fmt.Sprintf("| %s | %d | %d | %d | %.2f |\n", settings, b.rows, b.above, b.below, b.median())
}

const boundedHead = `
## How the bounds hold

Each bound is the estimate and a list of terms: what is uncertain, why, and how much. Weights, keys and values, and the states of an
optimizer are exact and have none. All rows of a whole process are counted, whether held out or not.

| settings | rows | above the upper bound | below the lower one | upper bound / estimate, in the median |
|---|---:|---:|---:|---:|
`

// boundedTable is the table of the page.
func boundedTable(t *testing.T, rows []cases.Case) string {
	return boundedHead + boundsOf(t, rows, "A").row("all are known (A)") + boundsOf(t, rows, "B").row("one detail is open (B)") +
		boundsOf(t, rows, "CD").row("more is open, or the authors' own layers (C, D)")
}

// No measurement whose settings are all known is above its upper bound, and of those whose settings are open one in twenty at
// most. The bound is worth something: where all is known, half are below 1.15 of the estimate.
func TestUpperBoundsHold(t *testing.T) {
	rows, _ := cases.Read(t, "../docs/estimate-cases.csv")
	known, open := boundsOf(t, rows, "A"), boundsOf(t, rows, "BCD")
	assert.Zero(t, known.above)
	assert.Less(t, known.median(), 1.15)
	assert.LessOrEqual(t, 20*open.above, open.rows)
	one := boundsOf(t, rows, "B")
	assert.LessOrEqual(t, 20*one.above, one.rows)
}
