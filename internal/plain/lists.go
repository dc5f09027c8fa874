package plain

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

// A list's elements are either packed in a text, which lists of the same elements share, or a slice of its own. Most of
// a recording is the call stacks of its events, lists of a few dicts in ever the same order.

// lists are the lists of a Data.
type lists struct {
	memory *bounded.Reader
	// numbers has the number of each list's elements: an index in packed or, if it is negative, the complement of one in
	// own. Number 0 is that of no elements.
	numbers slabs[int32]
	packed  slabs[string]
	own     slabs[ownElements]
	same    map[string]int32 // the number of a packed text
	packing []byte           // the text that is being made
}

func newLists(r *bounded.Reader) lists {
	l := lists{memory: r, same: make(map[string]int32)}
	l.packed.add()
	return l
}

// ownElements are the elements of one list. It has dicts only as long as nothing else is in it.
type ownElements struct {
	dicts  []uint32 // numbers of dicts
	values []Value
}

// The first byte of a packed text: what its elements are. It is the bytes that each takes.
const (
	packedDicts  = 4 // numbers of dicts
	packedValues = 9 // kinds and numbers
)

const (
	maxPacked = 1024 // elements; a longer list is a list of its own
	listBytes = 24   // far more than a list takes, without what follows: a file of nothing but lists is refused soon
	packBytes = 80   // with its place in a map
	ownBytes  = 48
)

// Len returns the number of a list's elements, 0 if the value is no list.
func (l *lists) Len(v Value) int {
	if v.kind != List {
		return 0
	}
	at := *l.numbers.at(v.n)
	if at < 0 {
		own := l.own.at(int64(^at))
		return max(len(own.dicts), len(own.values))
	}
	return packedLen(*l.packed.at(int64(at)))
}

func packedLen(text string) int {
	if text == "" {
		return 0
	}
	return (len(text) - 1) / int(text[0])
}

// Element returns an element of a list.
func (l *lists) Element(list Value, i int) Value {
	at := *l.numbers.at(list.n)
	if at >= 0 {
		return unpack(*l.packed.at(int64(at)), i)
	}
	own := l.own.at(int64(^at))
	if own.dicts != nil {
		return Value{Dict, int64(own.dicts[i])}
	}
	return own.values[i]
}

func unpack(text string, i int) Value {
	if text[0] == packedDicts {
		b := text[1+packedDicts*i:][:packedDicts]
		return Value{Dict, int64(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24)}
	}
	b := text[1+packedValues*i:][:packedValues]
	var n uint64
	for j, c := range []byte(b[1:]) {
		n |= uint64(c) << (8 * j)
	}
	return Value{Kind(b[0]), int64(n)}
}

// List returns a list's elements, or nil if the value is no list. Do not write to the slice.
func (l *lists) List(v Value) []Value {
	n := l.Len(v)
	if n == 0 {
		return nil
	}
	if at := *l.numbers.at(v.n); at < 0 && l.own.at(int64(^at)).values != nil {
		return l.own.at(int64(^at)).values
	}
	values := make([]Value, n)
	for i := range values {
		values[i] = l.Element(v, i)
	}
	return values
}

// Same returns a number of a list's elements: two lists of the same number have the same ones. The numbers are small, so
// that they can be indices. ok is false if the value is no list.
func (l *lists) Same(v Value) (number int, ok bool) {
	if v.kind != List {
		return 0, false
	}
	at := int(*l.numbers.at(v.n))
	if at < 0 {
		return 2*^at + 1, true
	}
	return 2 * at, true
}

func (l *lists) newList() (Value, error) {
	return Value{List, l.numbers.add()}, l.memory.Use(listBytes)
}

// extend appends to a list.
func (l *lists) extend(list Value, values []Value) error {
	at := l.numbers.at(list.n)
	switch {
	case len(values) == 0:
		return nil
	case *at == 0 && len(values) <= maxPacked:
		return l.pack(at, values)
	case *at >= 0:
		if err := l.unshare(at); err != nil {
			return err
		}
	}
	own := l.own.at(int64(^*at))
	if own.values == nil && !allDicts(values) {
		if err := l.memory.Use(valueBytes * int64(len(own.dicts))); err != nil {
			return err
		}
		own.values = make([]Value, 0, len(own.dicts)+len(values))
		for _, n := range own.dicts {
			own.values = append(own.values, Value{Dict, int64(n)})
		}
		own.dicts = nil
	}
	if own.values != nil {
		if err := l.useGrowth(len(own.values), cap(own.values), len(values), valueBytes); err != nil {
			return err
		}
		own.values = append(own.values, values...)
		return nil
	}
	if err := l.useGrowth(len(own.dicts), cap(own.dicts), len(values), packedDicts); err != nil {
		return err
	}
	for _, v := range values {
		own.dicts = append(own.dicts, uint32(v.n))
	}
	return nil
}

// useGrowth counts the memory that append may take for more elements.
func (l *lists) useGrowth(n, room, more int, each int64) error {
	if n+more <= room {
		return nil
	}
	return l.memory.Use(each * int64(max(more, room/4)))
}

var errLists = fmt.Errorf("%w: it has more than %d different lists", bounded.ErrTooLarge, math.MaxInt32)

// unshare gives a list elements of its own, to append to.
func (l *lists) unshare(at *int32) error {
	text := *l.packed.at(int64(*at))
	own := ownElements{}
	n := packedLen(text)
	if err := l.memory.Use(ownBytes + valueBytes*int64(n)); err != nil {
		return err
	}
	for i := range n {
		if text[0] == packedDicts {
			own.dicts = append(own.dicts, uint32(unpack(text, i).n))
		} else {
			own.values = append(own.values, unpack(text, i))
		}
	}
	place := l.own.add()
	if place > math.MaxInt32 {
		return errLists
	}
	*l.own.at(place) = own
	*at = ^int32(place)
	return nil
}

func allDicts(values []Value) bool {
	for _, v := range values {
		if v.kind != Dict || v.n > math.MaxUint32 {
			return false
		}
	}
	return true
}

// pack sets the elements of an empty list.
func (l *lists) pack(at *int32, values []Value) error {
	text := l.packing[:0]
	if allDicts(values) {
		text = append(text, packedDicts)
		for _, v := range values {
			text = binary.LittleEndian.AppendUint32(text, uint32(v.n))
		}
	} else {
		text = append(text, packedValues)
		for _, v := range values {
			text = binary.LittleEndian.AppendUint64(append(text, byte(v.kind)), uint64(v.n))
		}
	}
	l.packing = text
	return l.share(at, text)
}

// share sets the elements of an empty list to those of a packed text, kept once.
func (l *lists) share(at *int32, text []byte) error {
	if same, ok := l.same[string(text)]; ok {
		*at = same
		return nil
	}
	if err := l.memory.Use(packBytes + int64(len(text))); err != nil {
		return err
	}
	place := l.packed.add()
	if place > math.MaxInt32 {
		return errLists
	}
	*l.packed.at(place) = string(text)
	*at = int32(place)
	l.same[*l.packed.at(place)] = int32(place)
	return nil
}
