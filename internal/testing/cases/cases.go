// Package cases holds estimates to docs/estimate-cases.csv: measurements of real GPUs, a row each, with what was first
// answered of those that were held out, and with today's answer and its bounds. It never decides how a row is answered.
package cases

import (
	"bytes"
	"encoding/csv"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// Case is a row of the table, by the names of its columns.
type Case map[string]string

// near is how far a measurement with which the estimator was corrected may be off, by its grade.
var near = map[string]float64{"A": 0.05, "B": 0.10, "C": 0.15, "D": math.Inf(1)}

// MiB is the number in a column of sizes.
func (c Case) MiB(t testing.TB, column string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(c[column], 64)
	require.NoError(t, err, "%s of %s, %s", column, c["model"], c["setting"])
	return v
}

// Off is how far the measurement lies from an answer, such as today_mib, as a fraction of it.
func (c Case) Off(t testing.TB, answer string) float64 {
	t.Helper()
	return c.MiB(t, "measured_mib")/c.MiB(t, answer) - 1
}

// HeldOut reports whether the estimator answered before anybody looked at the measurement.
func (c Case) HeldOut() bool { return c["first_mib"] != "" }

// Compared reports whether the row is one of those by which the estimator was corrected and is judged. Rows of grade D
// are off by more than the others may be, for a reason that docs/estimate-cases.md gives.
func (c Case) Compared() bool { return !c.HeldOut() && c["grade"] != "D" }

// Read returns the table and the names of its columns, in their order.
func Read(t testing.TB, path string) (rows []Case, columns []string) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	all, err := csv.NewReader(bytes.NewReader(data)).ReadAll()
	require.NoError(t, err)
	for _, r := range all[1:] {
		c := Case{}
		for i, name := range all[0] {
			c[name] = r[i]
		}
		rows = append(rows, c)
	}
	return rows, all[0]
}

// Run answers each row that is one's own, and returns how many there are. A row must have the answer and the bounds that
// the table claims, or gets them where update is set; the measurement must lie within the bounds and as near as its grade says.
func Run(t *testing.T, path string, update bool, own func(Case) bool, answer func(t *testing.T, c Case) estimate.Value) (n int) {
	rows, columns := Read(t, path)
	for _, c := range rows {
		if !own(c) {
			continue
		}
		n++
		t.Run(c["model"]+" "+c["setting"]+" "+c["quantity"], func(t *testing.T) {
			f := answer(t, c)
			_, decimals, _ := strings.Cut(c["today_mib"], ".")
			for _, is := range []struct {
				column   string
				bytes    alloc.Bytes
				decimals int
			}{{"today_mib", f.Bytes, len(decimals)}, {"lower_mib", f.Lower, 0}, {"upper_mib", f.Upper, 0}} {
				made := strconv.FormatFloat(float64(is.bytes)/float64(alloc.MiB), 'f', is.decimals, 64)
				if is.bytes == estimate.Unbounded {
					made = ""
				}
				if update {
					c[is.column] = made
				}
				assert.Equal(t, c[is.column], made, "%s: -update writes today's answers; the first one stays", is.column)
			}
			c.judge(t, f)
		})
	}
	if update {
		write(t, path, columns, rows)
	}
	return n
}

// judge fails if the measurement lies outside the bounds, unless a note says that it does, or is further off than its grade lets it.
func (c Case) judge(t *testing.T, f estimate.Value) {
	measured := alloc.Bytes(c.MiB(t, "measured_mib") * float64(alloc.MiB))
	if strings.HasPrefix(c["note"], "not met") {
		assert.False(t, f.Lower <= measured && measured <= f.Upper, "it is met: take the note away")
		return
	}
	assert.LessOrEqual(t, measured, f.Upper)
	assert.GreaterOrEqual(t, measured, f.Lower)
	if limit, known := near[c["grade"]]; !c.HeldOut() {
		require.True(t, known, "no grade %q", c["grade"])
		assert.LessOrEqual(t, math.Abs(float64(measured)/float64(f.Bytes)-1), limit)
	}
}

func write(t *testing.T, path string, columns []string, rows []Case) {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	require.NoError(t, w.Write(columns))
	for _, c := range rows {
		row := make([]string, len(columns))
		for i, name := range columns {
			row[i] = c[name]
		}
		require.NoError(t, w.Write(row))
	}
	w.Flush()
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o644))
}
