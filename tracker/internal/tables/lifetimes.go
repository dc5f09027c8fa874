package tables

import (
	"math"
	"math/bits"
	"sort"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// ages counts buffers by the age at which they were freed. Bucket i reaches up to
// 2^(10+i) ns: the first is below 1 µs, the last is everything from 78 hours on.
// When a bucket is full, all are halved, so that the shares stay.
type ages [40]uint32

func ageBucket(age time.Duration) int {
	return min(max(0, bits.Len64(uint64(max(0, age)))-10), len(ages{})-1)
}

func (a *ages) add(age time.Duration) {
	i := ageBucket(age)
	if a[i] == math.MaxUint32 {
		for j := range a {
			a[j] -= a[j] / 2 // one stays one: rare old age is not forgotten
		}
	}
	a[i]++
}

// count returns how many were freed.
func (a *ages) count() int64 { return a.atLeast(0) }

// atLeast returns how many were freed at that age, a power of two of
// nanoseconds, or later.
func (a *ages) atLeast(age time.Duration) (n int64) {
	for _, bucket := range a[ageBucket(age):] {
		n += int64(bucket)
	}
	return n
}

// usual returns the lowest power of two of nanoseconds below which at least 99 % were
// freed, and what share that is, from 0 to 1.
func (a *ages) usual() (below time.Duration, share float64) {
	all := a.count()
	older := all
	for i, bucket := range a[:len(a)-1] {
		older -= int64(bucket)
		if older*100 <= all {
			return 1 << (10 + i), 1 - float64(older)/float64(max(1, all))
		}
	}
	return math.MaxInt64, 1
}

// Lifetimes counts at which ages the buffers of one line of code were freed.
type Lifetimes struct {
	ages ages
	last uint64 // number of the event in which the last one was freed
}

// Freed adds a buffer that was freed at that age, by the event with that number.
func (l *Lifetimes) Freed(age time.Duration, event uint64) {
	l.ages.add(age)
	l.last = event
}

// Count returns how many buffers were freed.
func (l *Lifetimes) Count() int64 { return l.ages.count() }

// Usual returns the lowest power of two of nanoseconds below which at least 99 % were
// freed, and what share that is, from 0 to 1.
func (l *Lifetimes) Usual() (below time.Duration, share float64) { return l.ages.usual() }

// LiveBuffer is a live buffer.
type LiveBuffer struct {
	Stack StackID
	Since time.Duration // of the allocation
	Seq   uint64        // number of the event
	Bytes alloc.Bytes
}

// What makes buffers suspects; see leaks.Suspects, which gives the reasons.
const (
	minFreed    = 100
	minSuspects = 8
	farOlder    = 16
	minAge      = time.Duration(1) << 30 // 1.07 s
)

// IsZero reports whether no buffer was freed.
func (l *Lifetimes) IsZero() bool { return l.last == 0 }

// Suspects returns those of a line's live buffers that look forgotten. The
// buffers must be in the order of their allocation, which is the order of the result.
func (l *Lifetimes) Suspects(now time.Duration, live []LiveBuffer) []LiveBuffer {
	freed := l.ages.count()
	if freed < minFreed {
		return nil
	}
	for age := minAge; ; age *= 2 {
		old := live[:sort.Search(len(live), func(i int) bool { return now-live[i].Since < age })]
		if len(old) < minSuspects {
			return nil
		}
		late := l.ages.atLeast(age / farOlder)
		if late*100 <= freed && late*minSuspects <= int64(len(old)) && l.recurs(old, age) {
			return old
		}
	}
}

// recurs reports whether old buffers come again and again: they were allocated over a
// time at least as long as that age, and a quarter of them in the second half of the events
// from the first of them to the line's last free.
func (l *Lifetimes) recurs(old []LiveBuffer, age time.Duration) bool {
	first, last := old[0], old[len(old)-1]
	middle := first.Seq + (max(l.last, first.Seq)-first.Seq)/2
	late := len(old) - sort.Search(len(old), func(i int) bool { return old[i].Seq >= middle })
	return last.Since-first.Since >= age && 4*late >= len(old)
}

// UsuallyFreed reports whether at least half of a line's live buffers are no older than
// 99 % of its freed ones became, and so may be freed in time. A line that freed
// nothing has a nil l.
func (l *Lifetimes) UsuallyFreed(now time.Duration, live []LiveBuffer) bool {
	if l == nil {
		return false
	}
	usual, _ := l.ages.usual()
	young := 0
	for _, b := range live {
		if now-b.Since < usual {
			young++
		}
	}
	return 2*young >= len(live)
}
