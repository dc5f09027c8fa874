package pprof_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// byAddress adds up a profile's values by the addresses of the stack and the labels,
// which is what a scraper that subtracts profiles goes by: it does not read functions.
func byAddress(t *testing.T, text []byte) map[string][]int64 {
	p, err := profile.ParseData(text)
	require.NoError(t, err)
	sums := make(map[string][]int64)
	for _, s := range p.Sample {
		var stack []uint64
		for _, l := range s.Location {
			stack = append(stack, l.Address)
		}
		key := fmt.Sprint(stack, s.Label)
		if sums[key] == nil {
			sums[key] = make([]int64, len(s.Value))
		}
		for i, v := range s.Value {
			sums[key][i] += v
		}
	}
	return sums
}

func TestLinesAreToldApartByAddress(t *testing.T) {
	p, err := profile.ParseData(write(t, dump(t)))
	require.NoError(t, err)
	lines := make(map[uint64]string)
	for _, l := range p.Location {
		line := fmt.Sprint(l.Line[0].Function.Name, l.Line[0].Function.Filename, l.Line[0].Line)
		assert.NotContains(t, lines, l.Address, line)
		assert.NotZero(t, l.Address)
		assert.Less(t, l.Address, uint64(1)<<53, "a number of JavaScript")
		lines[l.Address] = line
	}
	require.NotEmpty(t, lines)
}

// TestDifferencesByAddressAreThoseOfTheStacks has two lines of one depth, kind and size, of which one
// allocates between two scrapes.
func TestDifferencesByAddressAreThoseOfTheStacks(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	allocate := [2]func(){
		func() { _, err := tr.AllocBytes(alloc.KiB, tracker.Activation); require.NoError(t, err) },
		func() { _, err := tr.AllocBytes(alloc.KiB, tracker.Activation); require.NoError(t, err) },
	}
	var first map[string][]int64
	for step, i := range []int{0, 1, 1} {
		allocate[i]()
		if step == 1 {
			first = byAddress(t, write(t, tr.Dump()))
		}
	}
	require.Len(t, first, 2, "two stacks")
	var grew [][]int64
	for key, now := range byAddress(t, write(t, tr.Dump())) {
		before := first[key]
		require.NotNil(t, before, "the stack has other addresses in the next profile")
		if !assert.ObjectsAreEqual(before, now) {
			grew = append(grew, []int64{now[0] - before[0], now[1] - before[1]})
		}
	}
	assert.Equal(t, [][]int64{{1, 1024}}, grew)
}

func TestAddressesAreThoseOfOtherProfiles(t *testing.T) {
	r := dump(t)
	again, err := profile.Parse(bytes.NewReader(write(t, r)))
	require.NoError(t, err)
	first, err := profile.Parse(bytes.NewReader(write(t, r)))
	require.NoError(t, err)
	merged, err := profile.Merge([]*profile.Profile{first, again})
	require.NoError(t, err)
	assert.Len(t, merged.Location, len(first.Location))
	assert.Len(t, merged.Sample, len(first.Sample))
}
