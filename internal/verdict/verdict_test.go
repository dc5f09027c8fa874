package verdict_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/verdict"
)

func TestOf(t *testing.T) {
	unknown := verdict.Values{Requested: -1, Capacity: -1, Free: -1, Inactive: -1, Reserved: -1, Outside: -1, Limit: -1}
	for _, test := range []struct {
		name string
		set  func(*verdict.Values)
		want verdict.Verdict
	}{
		{"nothing", func(*verdict.Values) {}, verdict.Unknown},
		{"the request", func(v *verdict.Values) { v.Requested = 20 }, verdict.Unknown},
		{"more than the device", func(v *verdict.Values) { v.Requested, v.Capacity = 200, 100 }, verdict.TooLarge},
		{"enough is free", func(v *verdict.Values) { v.Requested, v.Free = 20, 50 }, verdict.NoShortage},
		{"enough is free of a device", func(v *verdict.Values) { v.Requested, v.Free, v.Capacity = 200, 500, 1000 }, verdict.NoShortage},
		{"hardly enough is free", func(v *verdict.Values) { v.Requested, v.Free, v.Capacity, v.Reserved = 200, 210, 1000, 790 }, verdict.TrulyFull},
		{"hardly enough, and pieces", func(v *verdict.Values) {
			v.Requested, v.Free, v.Capacity, v.Reserved, v.Inactive = 200, 210, 1000, 790, 300
		}, verdict.Fragmented},
		{"pieces", func(v *verdict.Values) { v.Requested, v.Free, v.Inactive, v.Reserved = 20, 5, 15, 90 }, verdict.Fragmented},
		{"too few pieces", func(v *verdict.Values) { v.Requested, v.Free, v.Inactive, v.Reserved = 20, 5, 14, 90 }, verdict.TrulyFull},
		{"others", func(v *verdict.Values) { v.Requested, v.Free, v.Inactive, v.Reserved, v.Outside = 20, 5, 0, 30, 60 }, verdict.OtherProcess},
		{"pieces before others", func(v *verdict.Values) { v.Requested, v.Free, v.Inactive, v.Reserved, v.Outside = 20, 5, 15, 30, 60 }, verdict.Fragmented},
		{"who has it is not said", func(v *verdict.Values) { v.Requested, v.Free = 20, 5 }, verdict.Unknown},
		{"the process has it", func(v *verdict.Values) { v.Requested, v.Free, v.Own = 20, 5, true }, verdict.TrulyFull},
		{"a limit", func(v *verdict.Values) { v.Requested, v.Free, v.Reserved, v.Limit = 20, 500, 90, 100 }, verdict.Limit},
		{"a limit that is not reached", func(v *verdict.Values) { v.Requested, v.Free, v.Reserved, v.Limit = 20, 500, 50, 100 }, verdict.NoShortage},
		{"a limit that rounding hides", func(v *verdict.Values) { v.Requested, v.Free, v.Reserved, v.Limit = 2000, 500000, 97500, 100000 }, verdict.Limit},
		{"a limit of a full device", func(v *verdict.Values) { v.Requested, v.Free, v.Reserved, v.Limit = 20, 5, 90, 100 }, verdict.TrulyFull},
	} {
		v := unknown
		test.set(&v)
		assert.Equal(t, test.want, v.Of(), test.name)
	}
}

func TestWords(t *testing.T) {
	assert.Equal(t, verdict.TrulyFull, verdict.OfAdvice("truly full: free the buffers"))
	assert.Equal(t, verdict.Unknown, verdict.OfAdvice("No setting helps"))
	text, err := json.Marshal([]verdict.Verdict{verdict.Unknown, verdict.OtherProcess})
	require.NoError(t, err)
	assert.JSONEq(t, `[null, "other process"]`, string(text))
}
