package cache

import (
	"math"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// limited is a tuning with a limit only.
type limited struct {
	dev      alloc.Device
	fraction float64 // as a part of the device's memory; 0 means no limit
}

func (t limited) limit() alloc.Bytes {
	if t.fraction == 0 {
		return math.MaxInt64
	}
	info, err := t.dev.MemInfo()
	if err != nil || info.Total < 0 {
		return math.MaxInt64
	}
	if limit := t.fraction * float64(info.Total); limit < math.MaxInt64 {
		return alloc.Bytes(limit)
	}
	return math.MaxInt64
}

func (t limited) collect() {}

func (t limited) spare(request) bool { return false }

// tuned is the tuning of a cache of segments.
type tuned struct {
	limited
	segmented
	threshold float64     // as a part of the limit; 0 means none
	maxSplit  alloc.Bytes // that of fitting
}

// collect is PyTorch's garbage collection: when the cache holds more than the threshold, it
// gives back wholly free large segments until it does not, those first that have not been used for
// longer than the average.
func (t tuned) collect() {
	if t.threshold == 0 || t.fraction == 0 {
		return
	}
	limit := alloc.Bytes(t.threshold * float64(t.limit()))
	t.c.mu.Lock()
	var old map[id]bool
	if excess := t.c.stats.Reserved.Bytes.Current - limit; excess > 0 {
		old = t.oldest(excess)
	}
	t.c.mu.Unlock()
	if old != nil {
		_, _ = t.give(t.detachFree(old)) // what the driver refuses stays
	}
}

// oldest picks free blocks that fill a large segment: again and again those that are not younger
// than the average, until they have enough bytes together, or no block is left.
func (t tuned) oldest(enough alloc.Bytes) map[id]bool {
	var ids []id
	sum := 0.0
	for p := range t.c.streams.all() {
		for _, i := range t.large(p).from(0) {
			if t.c.blocks.At(i).whole() {
				ids = append(ids, i)
				sum += t.age(i)
			}
		}
	}
	picked := make(map[id]bool)
	for taken := alloc.Bytes(0); taken < enough && len(ids) > 0; {
		average := sum / float64(len(ids))
		ids = slices.DeleteFunc(ids, func(i id) bool {
			if t.age(i) < average {
				return false
			}
			picked[i] = true
			taken += t.c.blocks.At(i).size
			sum -= t.age(i)
			return true
		})
	}
	return picked
}

// age returns for how many requests of large blocks a free block has not been used.
func (t tuned) age(i id) float64 { return float64(t.c.clock - t.c.blocks.At(i).slack) }

// spare gives back a stream's free blocks that are kept for large requests: the
// smallest that has the size, or if none has, the largest ones until they have it together.
// It reports whether that much was given back.
func (t tuned) spare(r request) bool {
	if t.maxSplit == math.MaxInt64 || r.pool() == small {
		return false
	}
	t.c.mu.Lock()
	kept, enough := t.kept(r)
	t.c.mu.Unlock()
	leaving := t.detachFree(kept)
	slices.Reverse(leaving) // the largest first
	_, err := t.give(leaving)
	return err == nil && enough
}

// kept picks the blocks that spare gives back, and reports whether they are large enough together.
func (t tuned) kept(r request) (picked map[id]bool, enough bool) {
	picked = make(map[id]bool)
	p := t.c.streams.of(r.stream)
	if p == nil {
		return picked, false
	}
	size := max(r.size, t.maxSplit)
	if i := t.large(p).fit(size); i != none {
		picked[i] = true
		return picked, true
	}
	taken := alloc.Bytes(0)
	for _, i := range slices.Backward(t.large(p).from(t.maxSplit)) {
		if taken >= size {
			break
		}
		picked[i] = true
		taken += t.c.blocks.At(i).size
	}
	return picked, taken >= size
}
