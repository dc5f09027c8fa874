package bands

import (
	"math"
	"slices"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Names numbers lines of code and kinds. The indexes of several files share one, so that a number means the same line in all
// of them. Its methods may be called from any goroutine. Make one with NewNames.
type Names struct {
	mu        sync.Mutex
	lines     []mem.Frame
	lineIDs   map[mem.Frame]uint32
	kinds     []mem.Kind
	kindIDs   map[mem.Kind]uint16
	printed   *lines.Names // of the first lines
	ofPrinted int
}

// NewNames returns an empty Names. Kind 0 is the unspecified one.
func NewNames() *Names {
	return &Names{lineIDs: make(map[mem.Frame]uint32), kinds: []mem.Kind{""}, kindIDs: map[mem.Kind]uint16{"": 0}}
}

func (n *Names) line(f mem.Frame) uint32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	id, ok := n.lineIDs[f]
	if !ok {
		id = uint32(len(n.lines))
		n.lines = append(n.lines, f)
		n.lineIDs[f] = id
	}
	return id
}

// kind numbers a kind. Those that would be too many count as unspecified.
func (n *Names) kind(k mem.Kind) uint16 {
	n.mu.Lock()
	defer n.mu.Unlock()
	id, ok := n.kindIDs[k]
	if !ok && len(n.kinds) <= math.MaxUint16 {
		id = uint16(len(n.kinds))
		n.kinds = append(n.kinds, k)
		n.kindIDs[k] = id
	}
	return id
}

// Len returns how many lines and kinds there are.
func (n *Names) Len() (lines, kinds int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.lines), len(n.kinds)
}

// Line returns the name of a line: "model.py:12 forward", with the folders that distinguish it from other lines; "" if there
// is no such number.
func (n *Names) Line(id uint32) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if int(id) >= len(n.lines) {
		return ""
	}
	if n.printed == nil || n.ofPrinted != len(n.lines) {
		n.printed, n.ofPrinted = lines.NewNames(slices.Values(n.lines)), len(n.lines)
	}
	return n.printed.Of(n.lines[id])
}

// Frame returns a line; the zero Frame if there is no such number.
func (n *Names) Frame(id uint32) mem.Frame {
	n.mu.Lock()
	defer n.mu.Unlock()
	if int(id) >= len(n.lines) {
		return mem.Frame{}
	}
	return n.lines[id]
}

// Kind returns the name of a kind; "" if there is no such number.
func (n *Names) Kind(id uint16) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if int(id) >= len(n.kinds) {
		return ""
	}
	return n.kinds[id].String()
}
