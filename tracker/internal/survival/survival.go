// Package survival finds suspected leaks: it judges by the ages of buffers whether some live buffers of a line of code
// will not be freed, or whether the line grows. While a program runs, a [Unit] counts at which ages the buffers of one
// line or call path were freed. [Unit.Suspected] and [Unit.Growing] compare that with the live buffers, whose final
// age is not known yet: each counts with the age that it has reached.
package survival

import (
	"math"
	"math/bits"
	"sync"
	"time"
)

// Unit counts the buffers of a line of code, or of a call path to it. The zero value is ready to use.
type Unit struct {
	// Ages are the ages at which buffers were freed. A line counts all; a call path counts only
	// those of at least Counted, and has nil before the first, since there may be very many paths.
	Ages      *Ages
	Last      uint64    // number of the event in which the latest buffer was freed
	Grown     *Triangle // freed buffers that lived longer than a window; nil before there is one
	Allocated uint16    // buffers ever allocated, modulo 2^16
	// Missed says that the unit has no Triangle because there were too many: it is not known then whether it grows.
	Missed bool
}

// Counted is the smallest age at which a call path counts a freed buffer, 0.27 s. It is a quarter
// of the smallest age at which buffers may be suspected leaks.
const Counted = time.Duration(1) << 28

// Ages counts buffers by the age at which they were freed. Bucket 0 is below 1 µs, bucket i above it begins at
// 2^(9+i) ns, and the last one is everything from 78 hours on. A bucket that is full stays full.
type Ages [40]uint32

func bucket(age time.Duration) int {
	return min(max(0, bits.Len64(uint64(max(0, age)))-10), len(Ages{})-1)
}

// Add counts a buffer that was freed at that age.
func (a *Ages) Add(age time.Duration) {
	if i := bucket(age); a[i] != math.MaxUint32 {
		a[i]++
	}
}

// Count returns how many were freed.
func (a *Ages) Count() int64 { return a.from(0) }

// from returns how many buffers were freed in bucket i or a later one.
func (a *Ages) from(i int) (n int64) {
	for _, k := range a[i:] {
		n += int64(k)
	}
	return n
}

// Usual returns the lowest power of two of nanoseconds below which at least 99 % were freed.
func (a *Ages) Usual() time.Duration {
	all := a.Count()
	older := all
	for i, n := range a[:len(a)-1] {
		if older -= int64(n); older*100 <= all {
			return below(i)
		}
	}
	return math.MaxInt64
}

// below returns the upper end of an age bucket.
func below(i int) time.Duration {
	if i == len(Ages{})-1 {
		return math.MaxInt64
	}
	return 1 << (10 + i)
}

// Buffer is a live buffer.
type Buffer struct {
	Since time.Duration // time of the allocation
	Seq   uint64        // the number of its event
	// Ordinal counts the buffers of the unit before this one, modulo 2^16: the difference of two neighbours is how many were
	// allocated in between.
	Ordinal uint16
	Of      int32 // the caller's own number of the buffer
}

// Copy returns a copy of the unit, with Grown only if grown is set. lock guards the unit; Copy does
// not hold it while it allocates memory.
func (u *Unit) Copy(lock sync.Locker, grown bool) *Unit {
	own, ages := new(Unit), new(Ages)
	lock.Lock()
	*own = *u
	if u.Ages != nil {
		*ages, own.Ages = *u.Ages, ages
	}
	lock.Unlock()
	if own.Grown == nil {
		return own
	}
	if own.Grown = nil; !grown {
		return own
	}
	triangle := new(Triangle)
	lock.Lock()
	defer lock.Unlock()
	if u.Grown != nil {
		*triangle, own.Grown = *u.Grown, triangle
	}
	return own
}

// Freed returns how many buffers of a line were freed.
func (u *Unit) Freed() int64 {
	if u.Ages == nil {
		return 0
	}
	return u.Ages.Count()
}

// Units keeps the units of a program. They share the limit on memory for triangles. The zero value
// is ready to use.
type Units struct {
	with []*Unit // units that have a triangle
	next int     // the one before the next that reserve checks
}

// maxTriangles bounds the memory of all triangles to 17 MB.
const maxTriangles = 1 << 11

// Freed counts a buffer that a line allocated, on a call path, and that was freed at that age. Now is the time
// since the program's start.
func (us *Units) Freed(line, path *Unit, age, now time.Duration, event uint64) {
	line.Last, path.Last = event, event
	if line.Ages == nil {
		line.Ages = new(Ages)
	}
	line.Ages.Add(age)
	if age >= Counted {
		us.freedOld(line, path, age, now)
	}
}

func (us *Units) freedOld(line, path *Unit, age, now time.Duration) {
	if path.Ages == nil {
		path.Ages = new(Ages)
	}
	path.Ages.Add(age)
	if age >= WidthAt(now) {
		us.count(line, age, now)
		us.count(path, age, now)
	}
}

// count counts a freed buffer in the triangle of a unit.
func (us *Units) count(u *Unit, age, now time.Duration) {
	if u.Grown == nil {
		if u.Missed = u.Missed || !us.reserve(now); u.Missed {
			return
		}
		u.Grown = &Triangle{shift: shiftAt(now)}
		us.with = append(us.with, u)
	}
	u.Grown.freed(now-age, now)
}

// reserve reports whether one more unit may have a triangle. At the limit it checks a few triangles, and drops one that
// has become empty, because its windows are now longer than its buffers live.
func (us *Units) reserve(now time.Duration) bool {
	if len(us.with) < maxTriangles {
		return true
	}
	for range 4 {
		us.next = (us.next + 1) % len(us.with)
		u := us.with[us.next]
		if u.Grown.fit(now); u.Grown.empty() {
			u.Grown = nil
			last := len(us.with) - 1
			us.with[us.next] = us.with[last]
			us.with = us.with[:last]
			return true
		}
	}
	return false
}
