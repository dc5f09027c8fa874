package nvml

import (
	"encoding/json"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func seriesOf(q Quantity, values ...float64) Series {
	b := newBuffer(1 << 10)
	for i, v := range values {
		b.add(time.Duration(i)*time.Second, v, !math.IsNaN(v))
	}
	return Series{
		Device:   Device{Index: 0, Name: "NVIDIA TITAN RTX", UUID: "GPU-0"},
		Quantity: q, total: b.total, points: b.points,
	}
}

func TestSeriesPrintsAsGpulinkDoes(t *testing.T) {
	s := seriesOf(MemoryUsed, 1729236992, 2315796480)
	assert.Equal(t, "NVIDIA TITAN RTX[0] -> memory used: min=1729.236992[MB] / max=2315.79648[MB]", s.String())
	assert.Equal(t, "NVIDIA TITAN RTX[0] -> memory used: min=0.000001[MB] / max=188743.68[MB]",
		seriesOf(MemoryUsed, 1, 188743680000).String(), "no exponent, and more than 99,999 MiB")
	assert.Equal(t, "NVIDIA TITAN RTX[0] -> power: min=70.5[W] / max=700[W]", seriesOf(Power, 70.5, 700).String())
	assert.Equal(t, "NVIDIA TITAN RTX[0] -> temperature: no sample", seriesOf(Temperature).String())
	s = seriesOf(ProcessMemory, 5e6)
	s.Target = Target{PID: 42, Children: true}
	assert.Equal(t, "NVIDIA TITAN RTX[0] -> memory of pid 42 and children: min=5[MB] / max=5[MB]", s.String())
	assert.Equal(t, "GPU 0 pid 42 and children", s.Label())
	s = seriesOf(MemoryUsed, 1)
	s.Scope = ofHost
	assert.Equal(t, "GPU 0 memory used (host memory: the GPU has none of its own)", s.Label())
	s.Device = Device{Index: 3, Name: "NVIDIA A100 MIG 1g.5gb", Parent: "GPU-3", MIG: 2}
	assert.Equal(t, "NVIDIA A100 MIG 1g.5gb[3.2] -> memory used: min=0.000001[MB] / max=0.000001[MB]", s.String())
}

func TestSeriesStatistics(t *testing.T) {
	s := seriesOf(Power, 4, math.NaN(), 2, 6)
	assert.Equal(t, 3, s.Len())
	assert.Equal(t, 1, s.Gaps())
	assert.Equal(t, 3*time.Second, s.Duration())
	assert.Equal(t, []float64{2, 6, 4}, []float64{s.Min(), s.Max(), s.Mean()})

	last := s.Last(2)
	assert.Equal(t, 2, last.Len())
	assert.Equal(t, time.Second, last.Duration())
	assert.Equal(t, []float64{2, 6, 4}, []float64{last.Min(), last.Max(), last.Mean()})
	assert.Equal(t, 3, s.Last(100).Len())
	assert.Zero(t, s.Last(0).Len())

	since := s.Since(2500 * time.Millisecond)
	assert.Equal(t, []float64{2, 6}, []float64{since.Min(), since.Max()}, "from the sample that holds then")
	assert.Equal(t, 3, s.Since(0).Len())
	assert.Equal(t, 1, s.Since(time.Hour).Len())

	empty := Series{}
	assert.Zero(t, empty.Since(time.Second).Len())
	assert.True(t, math.IsNaN(empty.Min()) && math.IsNaN(empty.Max()) && math.IsNaN(empty.Mean()))
	assert.Zero(t, empty.Duration())
}

func TestFormatForPeople(t *testing.T) {
	assert.Equal(t, "1.5 GiB", MemoryUsed.Format(1.5*(1<<30)))
	assert.Equal(t, "70.5 W", Power.Format(70.46))
	assert.Equal(t, "41 %", FanSpeed.Format(41))
	assert.Equal(t, "-", FanSpeed.Format(math.NaN()))
	assert.Equal(t, "Quantity(99)", Quantity(99).String())
}

// Whatever comes in, a buffer stays bounded, keeps the minimum and maximum of
// each stretch of time, and loses no sample from its sums.
func TestThinningKeepsWhatCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(2, 9).Draw(t, "size")
		values := rapid.SliceOfN(rapid.IntRange(-1, 1000), 0, 200).Draw(t, "values") // -1 is a gap
		b := newBuffer(size)
		for i, v := range values {
			b.add(time.Duration(i), float64(v), v >= 0)
		}
		if len(b.points) > max(size, 2) {
			t.Fatalf("%d points in a buffer of %d", len(b.points), size)
		}
		at, samples := 0, 0
		for i, p := range b.points {
			if int(p.time) != at {
				t.Fatalf("point %d begins at %d, not %d", i, p.time, at)
			}
			part := slices.DeleteFunc(slices.Clone(values[at:at+p.samples+p.gaps]), func(v int) bool { return v < 0 })
			if len(part) != p.samples {
				t.Fatalf("point %d: %d samples, not %d", i, p.samples, len(part))
			}
			if p.samples > 0 && (p.min != float64(slices.Min(part)) || p.max != float64(slices.Max(part))) {
				t.Fatalf("point %d: %v to %v of %v", i, p.min, p.max, part)
			}
			at += p.samples + p.gaps
			samples += p.samples
		}
		if at != len(values) || samples != b.total.samples {
			t.Fatalf("%d of %d queries, %d of %d samples", at, len(values), samples, b.total.samples)
		}
	})
}

func TestQuantities(t *testing.T) {
	assert.NotContains(t, allSet.list(), ProcessMemory)
	assert.Len(t, allSet.list(), int(numQuantities)-1)
	for q := range numQuantities {
		text, _ := json.Marshal([]Quantity{q})
		var back quantityKeys
		assert.NoError(t, json.Unmarshal(text, &back))
		assert.Equal(t, quantityKeys{q}, back)
		assert.NotEmpty(t, q.Unit())
	}
	var none quantityKeys
	assert.Error(t, json.Unmarshal([]byte(`["none"]`), &none))
}
