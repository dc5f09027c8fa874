package walk

import "github.com/gpumemtrack/gpumemtrack/alloc"

// Reverse is the content of each address while its user walks a history backwards, from its end. Each event implies the
// content just before it: nothing before a Begin, a live buffer before an End, pending memory before a Complete. An
// address that is not in the map was in no event so far, and its content is that at the end.
//
// A user that knows the content at the end need not Set it. The map then has no more entries than buffers that were
// live before the event, and addresses that are in use at the end.
type Reverse[T any] map[alloc.Ptr]Content[T]

// Content is what there was at an address.
type Content[T any] struct {
	State State
	Value T
	atEnd bool // the address is in use at the end. Nothing must then stay in the map: an absent entry means the content at the end
}

// State is the kind of content.
type State uint8

// The states.
const (
	Unknown State = iota // in no event so far: as at the end
	Nothing
	Live
	Pending
)

// Set sets the content at the end.
func (b Reverse[T]) Set(p alloc.Ptr, s State, v T) { b[p] = Content[T]{s, v, true} }

// Undo goes back over an event of the buffer v at p. It returns the content after the event, as far as later events or
// Set showed it.
func (b Reverse[T]) Undo(e Effect, p alloc.Ptr, v T) (after Content[T]) {
	after, known := b[p]
	atEnd := after.atEnd || !known && e == Begin
	switch {
	case e == End:
		b[p] = Content[T]{Live, v, atEnd}
	case e == Complete:
		b[p] = Content[T]{Pending, v, atEnd}
	case e == Begin && atEnd:
		b[p] = Content[T]{State: Nothing, atEnd: true}
	case e == Begin:
		delete(b, p)
	}
	return after
}
