package survival

import (
	"math"
	"sort"
	"time"
)

// Fewest is the least number of live buffers that may be suspected leaks, or grow. A unit with fewer need not be tested.
const Fewest = 8

// What makes buffers suspected leaks.
const (
	leastAge  = 21   // the bucket of 2^30 ns, 1.07 s: younger buffers are no suspects
	minYoung  = 20   // freed, to know how long the unit's buffers live
	hazard    = 0.5  // the least rate at which buffers of age a are freed is hazard/a
	chance    = 1e-5 // the highest probability that as few are freed by accident
	freedLive = 0.25 // the most old buffers that may have been freed, as a part of the live old ones
	moments   = 16   // moments in an age: buffers of one moment count once
)

// Suspected has the suspected leaks of a unit, and the reason.
type Suspected struct {
	Old   []Buffer      // the live ones
	Age   time.Duration // that all of them have reached
	Freed int64         // of all that reached it
	Young int64         // freed much younger than that
	Usual time.Duration // that those were below
}

// Suspected reports whether live buffers of the unit are suspected leaks. The buffers are in the order
// of their allocation; freed is how many of the unit were ever freed.
//
// The rule assumes that the longer buffers have lived, the rarer they are freed, but not too
// rarely: survival falls at least like one over the square root of age. So of the buffers that
// reach an age t, at least 29 % are freed by 2t. How long a live buffer will live is unknown: it
// counts for the time that it has lived beyond t. If far fewer were freed than the rule says, the
// live ones are suspected leaks.
//
// The test runs for each power of two of ages. At each age it tests all live buffers that old,
// then at the youngest half of them, the youngest quarter and so on: what a program keeps from its
// start must not hide what it leaks later.
func (u *Unit) Suspected(now time.Duration, live []Buffer, freed int64) (found Suspected, ok bool) {
	if freed < minYoung {
		return found, false
	}
	ages := u.Ages
	if ages == nil {
		ages = new(Ages)
	}
	var allocated []uint64
	for i := leastAge; i < len(ages)-1; i++ {
		age := below(i - 1)
		old := live[:sort.Search(len(live), func(k int) bool { return now-live[k].Since < age })]
		if len(old) < Fewest {
			break
		}
		late, young := ages.from(i), freed-ages.from(i-2)
		if young < int64(len(old))+late {
			continue // that old is usual
		}
		if allocated == nil {
			allocated = countAllocated(old)
		}
		for from := 0; len(old)-from >= Fewest; from += (len(old) - from + 1) / 2 {
			some, born := old[from:], allocated[from:len(old)]
			if float64(late) <= freedLive*float64(len(some)) && u.recurs(some, age) && mixed(born) && mixed(born[len(born)/2:]) && ages.few(some, i, now) {
				return Suspected{Old: some, Age: age, Freed: late, Young: young, Usual: ages.before(i - 2)}, true
			}
		}
	}
	return found, false
}

// few reports whether too few buffers were freed beyond the age of a bucket, which some live ones
// have reached, for this to be chance.
func (a *Ages) few(some []Buffer, i int, now time.Duration) bool {
	age := below(i - 1)
	moment := age / moments
	counted, expected, last := 0.0, 0.0, time.Duration(-1) // buffers of one moment count once
	for _, b := range some {
		if at := b.Since / moment; at != last {
			last = at
			counted++
			expected += math.Log(float64(now-b.Since) / float64(age))
		}
	}
	if counted < Fewest {
		return false
	}
	share := counted / float64(len(some))
	for k, n := range a[i:] {
		expected += share * float64(n) * (float64(k) + 0.5) * math.Ln2
	}
	return poisson(math.Ceil(share*float64(a.from(i))), hazard*expected) <= chance
}

// recurs reports whether old buffers appear again and again. They must have been allocated over a
// time at least as long as that age, and at least a quarter of them in the second half of the
// events between the first of them and the unit's last free.
func (u *Unit) recurs(old []Buffer, age time.Duration) bool {
	first, last := old[0], old[len(old)-1]
	middle := first.Seq + (max(u.Last, first.Seq)-first.Seq)/2
	late := len(old) - sort.Search(len(old), func(i int) bool { return old[i].Seq >= middle })
	return last.Since-first.Since >= age && 4*late >= len(old)
}

// countAllocated returns, for each buffer, how many buffers were allocated from the first one up to it.
func countAllocated(live []Buffer) []uint64 {
	allocated := make([]uint64, len(live))
	for i := 1; i < len(live); i++ {
		allocated[i] = allocated[i-1] + uint64(live[i].Ordinal-live[i-1].Ordinal)
	}
	return allocated
}

// mixed reports whether at most half of the buffers born between the first and the last of these
// are live. In a hang, a queue or a long batch nearly all are live.
func mixed(allocated []uint64) bool {
	last := len(allocated) - 1
	return uint64(2*last) <= allocated[last]-allocated[0]
}

// before returns an age below which all buffers freed before bucket i were freed, as far as they
// were counted.
func (a *Ages) before(i int) time.Duration {
	for ; i > 0; i-- {
		if a[i-1] != 0 {
			return below(i - 1)
		}
	}
	return Counted
}

// poisson returns the chance of k or fewer where mean are expected.
func poisson(k, mean float64) float64 {
	if mean > 500 {
		return 0.5 * math.Erfc((mean-k-0.5)/math.Sqrt(2*mean))
	}
	sum, term := 0.0, math.Exp(-mean)
	for i := 0.0; i <= k && i <= 10*mean+50; i++ {
		sum += term
		term *= mean / (i + 1)
	}
	return min(1, sum)
}
