package snapshot_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// TestLargestStacks are sums of the call sites.
func TestLargestStacks(t *testing.T) {
	type key struct {
		kind    mem.Kind
		memory  alloc.Memory
		section string
		stack   string
	}
	trained := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, trained)
	for name, s := range map[string]*snapshot.Snapshot{"of a tracker": trained.Snapshot(), "of another source": foreign(t).Snapshot} {
		for _, of := range []func(snapshot.Totals) mem.Tally{
			func(t snapshot.Totals) mem.Tally { return t.Live },
			func(t snapshot.Totals) mem.Tally { return t.Peak },
			func(t snapshot.Totals) mem.Tally { return t.Total },
		} {
			want := make(map[key]mem.Tally)
			var sum mem.Tally
			for c := range s.CallSites() {
				if tally := of(c.Totals); !tally.IsZero() {
					at := key{c.Kind, c.Memory, c.Section, c.Stack.String()}
					want[at] = want[at].Add(tally)
					sum = sum.Add(tally)
				}
			}
			require.NotEmpty(t, want, name)
			all, others, rest := s.LargestStacks(of, len(want)+1)
			assert.Zero(t, others, name)
			assert.Zero(t, rest, name)
			got := make(map[key]mem.Tally)
			for _, one := range all {
				got[key{one.Kind, one.Memory, one.Section, one.Stack.String()}] = one.Tally
			}
			assert.Equal(t, want, got, name)
			bytes := func(a, b snapshot.StackStats) int { return int(b.Bytes - a.Bytes) }
			assert.True(t, slices.IsSortedFunc(all, bytes), name)

			first, others, rest := s.LargestStacks(of, 1)
			assert.Equal(t, all[:1], first, name)
			assert.Equal(t, len(want)-1, others, name)
			assert.Equal(t, sum, rest.Add(first[0].Tally), name)
		}
	}
}
