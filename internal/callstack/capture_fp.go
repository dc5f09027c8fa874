//go:build gc && (amd64 || arm64) && !nofp

package callstack

import (
	"runtime"
	"slices"
	"strings"
)

const (
	// shallow is the depth up to which Capture uses a small buffer: the compiler clears it at each call.
	shallow = DefaultDepth
	// maxSkip is the largest skip that Capture walks for.
	maxSkip = 8
	// margin is what a walk takes beyond the depth: one or two frames of this package, and some for the compiler's wrappers,
	// which have physical frames but no logical ones. A stack with more wrappers than that takes the slow way, if it is
	// deeper than the walk and little in it is inlined.
	margin = 12
)

// Capture returns the ID of the calling goroutine's stack. With skip 0 the first frame is the call to Capture; each
// increment leaves out one more logical frame; a negative skip counts as 0. It returns Overflow for a stack that found the
// table full.
//
//go:noinline
func (t *Table) Capture(skip int) ID {
	if t.depth > shallow || uint(skip) > maxSkip || !walks {
		return t.captureDeep(skip)
	}
	var key [1 + maxSkip + shallow + margin]uintptr
	key[0] = uintptr(skip)
	n, hash := walk(&key[1], skip+t.depth+margin, hashWords(key[:1]))
	if e := t.keys.find(hash, key[:1+n]); e != nil {
		return e.id
	}
	return t.learn(2, skip, hash, key[:1+n])
}

// captureDeep is Capture for any depth and skip, and where walks are not to be trusted.
//
//go:noinline
func (t *Table) captureDeep(skip int) ID {
	skip = max(skip, 0)
	if skip > maxSkip || !walks {
		var pcs [MaxDepth]uintptr
		return t.Intern(pcs[:runtime.Callers(skip+3, pcs[:t.depth])])
	}
	var key [1 + maxSkip + MaxDepth + margin]uintptr
	key[0] = uintptr(skip)
	n, hash := walk(&key[1], skip+t.depth+margin, hashWords(key[:1]))
	if e := t.keys.find(hash, key[:1+n]); e != nil {
		return e.id
	}
	return t.learn(3, skip, hash, key[:1+n])
}

// Goroutine returns the number of the calling goroutine, which no other ever has. It is good for nothing but to compare.
func Goroutine() uint64 {
	if goidAt == 0 {
		return tracedGoroutine()
	}
	return word(goidAt)
}

// learn interns the stack that runtime.Callers gives beyond own frames of this package and skip more. It keeps key for it if
// that determines it, which shows from the first frame beyond this package on: the first beyond skip may be inlined into the
// next, and then no walk meets it. A key without frames, from a walk that failed, determines nothing.
//
//go:noinline
func (t *Table) learn(own, skip int, hash uint64, key []uintptr) ID {
	var pcs [maxSkip + MaxDepth]uintptr
	stack := pcs[:runtime.Callers(1+own, pcs[:skip+t.depth])]
	id := t.Intern(stack[min(skip, len(stack)):])
	if id != Overflow && len(key) > 1 && determines(key[1:], stack) {
		t.addKey(hash, key, id)
	}
	return id
}

// addKey remembers that key stands for the stack id. There are never more keys than the table may have stacks: a key that
// finds no room only costs its callers the slow way.
func (t *Table) addKey(hash uint64, key []uintptr, id ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.keys.n < t.max && t.keys.find(hash, key) == nil {
		t.keys.insert(&interned{hash: hash, id: id, words: slices.Clone(key)})
	}
}

// determines reports whether every walk that gives walked was taken on this stack. It is so if the walk met all physical
// frames of the stack: the first logical frame of each is its return address, and the ones inlined around it follow from
// that. A walk misses frames where
//
//   - a function without a frame record faulted: then the walk passes over its caller;
//   - C called back: what frame pointers say on the far side of the callback is C's, and may be anything;
//   - assembly called Go without a frame of its own: then the walk passes over its caller.
//
// Which frame is missed depends only on the code before it, so a stack that a walk covers cannot be taken for another.
// Addresses in walked that the stack does not have are wrappers, which runtime.Callers leaves out.
func determines(walked, stack []uintptr) bool {
	var around uintptr // entry of the function that the previous frame was inlined into
	for _, pc := range stack {
		f := frameAt(pc)
		if f.Function == "runtime.sigpanic" || strings.HasPrefix(f.Function, "runtime.cgocallback") {
			return false
		}
		if around == 0 || f.Entry != around {
			i := slices.Index(walked, pc)
			if i < 0 {
				return false
			}
			walked = walked[i+1:]
		}
		around = 0
		if f.Func == nil {
			around = f.Entry
		}
	}
	return len(stack) > 0
}
