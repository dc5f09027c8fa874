package nvml

import (
	"math"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A driver that hangs holds neither Start nor Stop up, and what it did not answer is a gap.
func TestADriverThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(2)
		file := filepath.Join(t.TempDir(), "hang.jsonl")
		r := start(t, Config{Source: f, Files: []string{file}})
		time.Sleep(500 * time.Millisecond)
		hangs := make(chan struct{})
		f.slow(0, hangs)
		time.Sleep(10 * time.Second)
		before := time.Now()
		require.NoError(t, r.Stop())
		assert.LessOrEqual(t, time.Since(before), answerLimit)
		close(hangs)

		read, err := ReadFile(file)
		require.NoError(t, err)
		for _, rec := range []Recording{r.Recording(), read} {
			for _, s := range rec.of(MemoryUsed) {
				assert.Equal(t, 3, s.Len())
				assert.Equal(t, 2, s.Gaps(), "a second after it was asked, and at the end")
				assert.Regexp(t, `^the driver has not answered for 1\d\.\d s when the recording ended$`, s.Note)
			}
		}
	})
}

func TestADriverThatHangsAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1)
		hangs := make(chan struct{})
		f.slow(0, hangs)
		before := time.Now()
		r := start(t, Config{Source: f})
		assert.LessOrEqual(t, time.Since(before), answerLimit)
		require.NoError(t, r.Stop())
		assert.LessOrEqual(t, time.Since(before), 2*answerLimit)
		assert.Zero(t, r.Recording().Series[0].Len())
		close(hangs)
	})
}

// What comes after all is of the time when it came, behind the gap.
func TestAnAnswerThatComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1)
		file := filepath.Join(t.TempDir(), "late.csv")
		r := start(t, Config{Source: f, Files: []string{file}})
		f.slow(15*time.Second, nil)
		time.Sleep(2 * time.Second)
		f.slow(0, nil)
		time.Sleep(17 * time.Second)
		require.NoError(t, r.Stop())
		read, err := ReadFile(file)
		require.NoError(t, err)
		var gaps []time.Duration
		var samples []time.Duration
		for at, v := range read.Series[0].Points() {
			if math.IsNaN(v) {
				gaps = append(gaps, at)
			} else {
				samples = append(samples, at)
			}
		}
		assert.Equal(t, []time.Duration{1200 * time.Millisecond}, gaps)
		assert.Equal(t, []time.Duration{0, 15200 * time.Millisecond, 16200 * time.Millisecond}, samples[:3], "rested for a second")
		assert.Contains(t, read.Series[0].Note, "has not answered for 1.0 s")
	})
}

// Ticks that the machine misses are a gap; a driver that is slow each time is not.
func TestMissedTicksAreAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := NewRecorder(Config{Source: newFake(1), Files: []string{t.TempDir() + "/"}, Interval: minInterval})
		require.NoError(t, err)
		sampling(t, r)
		for _, pause := range []time.Duration{10, 10, 17, 3, 240, 10} {
			sampleNow(r)
			time.Sleep(pause * time.Millisecond)
		}
		sampleNow(r)
		require.NoError(t, r.Stop())
		s := r.Recording().Series[0]
		assert.Equal(t, [2]int{7, 1}, [2]int{s.Len(), s.Gaps()})
		var at time.Duration
		for due, v := range s.Points() {
			if math.IsNaN(v) {
				at = due
			}
		}
		assert.Equal(t, 50*time.Millisecond, at, "when the sample was due")
	})
	for _, takes := range []time.Duration{4, 50, 101, 150, 450} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(1)
			f.slow(takes*time.Millisecond, nil)
			r := start(t, Config{Source: f, Interval: 10 * time.Millisecond})
			time.Sleep(10 * time.Second)
			require.NoError(t, r.Stop())
			s := r.Recording().Series[0]
			assert.Zero(t, s.Gaps(), "%d ms", takes)
			assert.Greater(t, s.Len(), 4)
		})
	}
}
