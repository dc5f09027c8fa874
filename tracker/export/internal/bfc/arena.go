package bfc

import (
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

// arena is a pool of ONNX Runtime, as its log tells (onnxruntime/core/framework/bfc_arena.cc).
type arena struct {
	line    int // of the log, where it is named first
	name    string
	limit   alloc.Bytes // -1 is none, or not known
	pool    alloc.Bytes // -1 before the log says it
	extents []alloc.Bytes
	given   alloc.Bytes // back, when it shrank
}

// arenas are those of a log. Several may have one name: an environment and each session have their own. A line of growth
// names only the sizes, so it belongs to the arena whose size leads to the one that is printed.
type arenas struct {
	all      []*arena
	name     string      // of the arena that is said to grow
	extended alloc.Bytes // by how much it did; -1 is not said
	reserved map[string][]alloc.Bytes
}

const (
	maxArenas  = 256
	maxExtents = 1 << 16 // of an arena
)

// line reads a line of the log.
func (a *arenas) line(number int, line string) bool {
	switch {
	case strings.Contains(line, "Creating BFCArena for "):
		limit, ok := numberAfter(line, "memory limit: ")
		if !ok || limit >= 1<<60 {
			limit = -1
		}
		a.add(number, nameAfter(line, "Creating BFCArena for "), limit)
	case strings.Contains(line, "Extending BFCArena for "):
		a.name, a.extended = strings.TrimSuffix(nameAfter(line, "Extending BFCArena for "), "."), -1
	case strings.Contains(line, "Extended allocation by "):
		a.extended, _ = numberAfter(line, "Extended allocation by ")
	case strings.Contains(line, "Total allocated bytes: "):
		if total, ok := numberAfter(line, "Total allocated bytes: "); ok && total <= maxChunk && a.extended >= 0 && a.extended <= total {
			a.grows(number, total)
		}
	case strings.Contains(line, "Reserving memory in BFCArena for "):
		if n, ok := numberAfter(line, " size: "); ok && n <= maxChunk {
			a.reserves(nameAfter(line, "Reserving memory in BFCArena for "), n)
		}
	case strings.Contains(line, " BFC Arena shrunk by "):
		a.shrinks(line)
	default:
		return false
	}
	return true
}

func nameAfter(line, words string) string {
	rest, _ := after(line, words)
	return bounded.Name(firstWord(rest))
}

// add adds an arena; a spare one if there are too many.
func (a *arenas) add(line int, name string, limit alloc.Bytes) *arena {
	n := &arena{line: line, name: name, limit: limit, pool: -1}
	if len(a.all) < maxArenas {
		a.all = append(a.all, n)
	}
	return n
}

// reserves keeps memory that an arena takes for weights: the next total has it.
func (a *arenas) reserves(name string, n alloc.Bytes) {
	const most = 1 << 12
	if a.reserved == nil {
		a.reserved = make(map[string][]alloc.Bytes)
	}
	if len(a.reserved) < maxArenas && len(a.reserved[name]) < most {
		a.reserved[name] = append(a.reserved[name], n)
	}
}

// grows takes the size of an arena that has grown.
func (a *arenas) grows(line int, total alloc.Bytes) {
	n := a.grew(total - a.extended)
	if n == nil {
		n = a.add(line, a.name, -1)
	}
	n.pool = total
	if len(n.extents) < maxExtents {
		n.extents = append(n.extents, a.extended)
	}
	a.extended = -1
}

// grew finds the arena that had so many bytes before it grew: one of that size, or one to which memory for weights was
// added since, or the only one of its name, to which that happened without a word. nil if it is one that the log has not
// named yet.
func (a *arenas) grew(before alloc.Bytes) *arena {
	var same []*arena
	for _, n := range a.all {
		if n.name == a.name {
			same = append(same, n)
		}
	}
	for _, n := range same {
		if n.pool == before {
			return n
		}
	}
	for _, n := range same {
		if gone := before - max(0, n.pool); slices.Contains(a.reserved[a.name], gone) {
			return n
		}
	}
	if i := slices.IndexFunc(same, func(n *arena) bool { return n.pool < 0 }); i >= 0 {
		return same[i]
	}
	if len(same) == 1 && before > 0 {
		return same[0]
	}
	return nil
}

// shrinks takes the size of an arena that gave memory back.
func (a *arenas) shrinks(line string) {
	by, known := numberAfter(line, " BFC Arena shrunk by ")
	total, ok := numberAfter(line, "The total allocated bytes is now ")
	if !known || !ok || by > maxChunk || total > maxChunk {
		return
	}
	head, _, _ := strings.Cut(line, " BFC Arena shrunk by ")
	name := head[strings.LastIndexByte(head, ' ')+1:]
	var only *arena
	count := 0
	for _, n := range a.all {
		if n.name != name {
			continue
		}
		only, count = n, count+1
		if n.pool == total+by {
			n.pool, n.given = total, n.given+by
			return
		}
	}
	if count == 1 {
		only.pool, only.given = total, only.given+by
	}
}

// of finds the arena that has so many bytes left below its limit, or the only one that the log names; nil if it does not
// tell.
func (a *arenas) of(left alloc.Bytes) *arena {
	var used []*arena
	for _, n := range a.all {
		if n.pool >= 0 && n.limit >= 0 && left >= 0 && n.limit-n.pool == left {
			return n
		}
		if n.pool >= 0 {
			used = append(used, n)
		}
	}
	if len(used) == 1 {
		return used[0]
	}
	return nil
}

// describe gives a failure what is known of its arena.
func (n *arena) describe(d *Failure) {
	if n == nil {
		return
	}
	d.allocator, d.pool, d.limit, d.extents, d.given = n.name, n.pool, n.limit, slices.Clone(n.extents), n.given
	if d.limit < 0 && d.available >= 0 && d.pool >= 0 {
		d.limit = d.pool + d.available
	}
}

// grown returns an entry for each arena that grew, for a log without a failure.
func (a *arenas) grown() (all []*Failure) {
	for _, n := range a.all {
		if len(n.extents) > 0 {
			d := newFailure(n.line)
			d.grows = true
			n.describe(d)
			all = append(all, d)
		}
	}
	return all
}
