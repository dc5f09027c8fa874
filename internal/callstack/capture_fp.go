//go:build gc && (amd64 || arm64) && !nofp

package callstack

import (
	"math"
	"runtime"
	"slices"
)

const (
	// shallow is the depth up to which Capture uses a small buffer: the compiler clears it at each call.
	shallow = DefaultDepth
	// maxSkip is the largest skip that Capture walks for.
	maxSkip = 8
	// margin is what a walk takes beyond the depth: Capture's frame, and some for the compiler's wrappers, which have physical
	// frames but no logical ones. A stack with more wrappers than that takes the slow way, if it is deeper than the walk and
	// little in it is inlined.
	margin = 12
)

// Capture returns the ID of the calling goroutine's stack. With skip 0 the first frame is the call to Capture; each
// increment leaves out one more logical frame; a negative skip counts as 0. It returns Overflow for a stack that found the
// table full.
//
//go:noinline
func (t *Table) Capture(skip int) ID {
	if !walks || uint(skip) > maxSkip {
		return t.captureSlowly(max(skip, 0))
	}
	id, slot := predict(&t.recent, skip)
	if id != 0 {
		return id
	}
	if t.depth > shallow {
		return t.captureDeep(skip, slot)
	}
	var key [1 + maxSkip + shallow + margin]uintptr
	key[0] = uintptr(skip)
	n, hash := walk(&key[1], nil, t.limit(skip), hashWords(key[:1]))
	if e := t.keys.find(hash, key[:1+n]); e != nil {
		t.remember(e, slot)
		return e.id
	}
	return t.learn(2, skip, slot, hash, key[:1+n])
}

// captureDeep is Capture for any depth.
//
//go:noinline
func (t *Table) captureDeep(skip, slot int) ID {
	var key [1 + maxSkip + MaxDepth + margin]uintptr
	n, hash := walk(&key[0], nil, 1+t.limit(skip), hashWords([]uintptr{uintptr(skip)}))
	key[0] = uintptr(skip) // in place of this frame
	if e := t.keys.find(hash, key[:n]); e != nil {
		t.remember(e, slot)
		return e.id
	}
	return t.learn(3, skip, slot, hash, key[:n])
}

// captureSlowly is Capture without a walk.
//
//go:noinline
func (t *Table) captureSlowly(skip int) ID {
	var pcs [MaxDepth]uintptr
	return t.Intern(pcs[:runtime.Callers(skip+3, pcs[:t.depth])])
}

// limit returns how many frames a walk takes, counted from Capture's own.
func (t *Table) limit(skip int) int { return skip + t.depth + margin }

// remember puts a key where predict looks for it. A negative slot stands for nowhere.
func (t *Table) remember(key *interned, slot int) {
	if slot >= 0 {
		t.recent[slot].key.Store(key)
	}
}

// learn interns the stack that runtime.Callers gives, without the innermost own frames, which are this
// package's, and skip more; or that follows from stacks that were seen before. If key determines that stack, learn keeps the
// key for it. It compares from the first frame outside of this package on, and not from skip: the first frame beyond skip may be
// inlined into the next, and a walk does not meet inlined frames. A key without frames, from a walk that failed,
// determines nothing.
//
//go:noinline
func (t *Table) learn(own, skip, slot int, hash uint64, key []uintptr) ID {
	var pcs [maxSkip + MaxDepth]uintptr
	stack, whole := pcs[:skip+t.depth], len(key) <= t.limit(skip)
	n, determined := t.symbols.expand(key[1:], whole, stack)
	if !determined {
		n = runtime.Callers(1+own, stack)
		if determined = len(key) >= 2 && t.symbols.determines(key[1:], stack[:n]); determined {
			t.symbols.learnRuns(key[1:], stack[:n], whole)
		}
	}
	id := t.Intern(stack[min(skip, n):n])
	if id == Overflow || t.keysFull() || !determined {
		return id
	}
	var offsets [maxSkip + MaxDepth + margin]uint32
	if !offsetsOf(own, offsets[:len(key)-1]) {
		return id
	}
	if e := t.addKey(hash, interned{id: id, whole: whole}, key, offsets[:len(key)-1]); e != nil {
		t.remember(e, slot)
	}
	return id
}

// offsetsOf finds the distances of so many frame records from the first, which is Capture's. The records of the own
// functions, which Capture has called, come before it. It reports whether it has found them all.
//
//go:noinline
func offsetsOf(own int, offsets []uint32) bool {
	var pcs, records [3 + maxSkip + MaxDepth + margin]uintptr
	n := own + len(offsets)
	if m, _ := walk(&pcs[0], &records[0], n, 0); m < n {
		return false
	}
	for i, at := range records[own:n] {
		if at -= records[own]; at > math.MaxUint32 {
			return false
		}
		offsets[i] = uint32(at)
	}
	return true
}

// keysFull reports whether there are as many keys as the table may have stacks. A stack whose key is not kept takes the
// slow path each time.
func (t *Table) keysFull() bool { return t.keys.n.Load() >= int64(t.max) }

// addKey remembers what stack a key stands for. It returns nil if the key is not kept.
func (t *Table) addKey(hash uint64, e interned, key []uintptr, offsets []uint32) *interned {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.keysFull() || t.keys.find(hash, key) != nil {
		return nil
	}
	number, kept := t.keys.in.add(e, key, offsets)
	t.keys.insert(hash, number)
	return kept
}

// Goroutine returns the number of the calling goroutine, which no other ever has. It is good for nothing but to compare.
func Goroutine() uint64 {
	if goidAt == 0 {
		return tracedGoroutine()
	}
	return word(goidAt)
}

// determines reports whether every walk that gives walked was taken on this stack. It is so if the walk met all physical
// frames of the stack: the first logical frame of each is its return address, and the ones inlined around it follow from
// that. A walk misses frames where
//
//   - a function without a frame record faulted: then the walk skips its caller;
//   - C called back: what frame pointers say on the far side of the callback is C's, and may be anything;
//   - assembly called Go without a frame of its own: then the walk skips its caller.
//
// Which frame is missed depends only on the code before it, so a stack that a walk covers cannot be taken for another.
// Addresses in walked that the stack does not have are wrappers, which runtime.Callers leaves out.
func (s *symbols) determines(walked, stack []uintptr) bool {
	var around uintptr // entry of the function that the previous frame was inlined into
	for _, pc := range stack {
		at := s.at(pc)
		if at.foreign {
			return false
		}
		if around == 0 || at.entry != around {
			i := slices.Index(walked, pc)
			if i < 0 {
				return false
			}
			walked = walked[i+1:]
		}
		around = 0
		if at.inlined {
			around = at.entry
		}
	}
	return len(stack) > 0
}

// walk follows the caller's frame pointers and writes the return addresses of at most limit frames to pcs, innermost first,
// and the addresses of the frame records to records, unless that is nil. hash is what hashWords gives for the return addresses
// when it starts with seed. n is the number of frames: limit, or fewer if the goroutine's first frame was reached, or 0 if the
// chain leads out of the goroutine's stack before that.
//
//go:noescape
func walk(pcs, records *uintptr, limit int, seed uint64) (n int, hash uint64)

// predict finds the stack of its caller, Capture, without a walk, if it knows it. From frame to frame a walk waits for memory,
// as each record tells where the next one is. A key tells of all records at once, since those of the same calls lie at the same
// distances from each other. So predict takes the key that some of the frames lead to, and checks that each record links to the
// next and has the key's return address: that is all that a walk would read. Then id is the key's stack; otherwise it is 0, and
// slot is where the key that a walk finds is to be kept, or -1 for nowhere. Only one of 64 replaces another, so that stacks that
// take turns in a slot cost little.
//
//go:noescape
func predict(recent *recentKeys, skip int) (id ID, slot int)

// bounds returns the words at two offsets in the goroutine's runtime.g, and the stack pointer, all of one instant.
func bounds(loAt, hiAt uintptr) (lo, hi, sp uintptr)

// word returns the word at an offset in the goroutine's runtime.g.
func word(offset uintptr) uint64
