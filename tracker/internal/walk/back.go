package walk

import "github.com/gpumemtrack/gpumemtrack/alloc"

// Back is what there was before an event, by address, while its user goes back from the end of a
// history. The rule is that an event tells what there was before it: a Begin that there was nothing, an End
// that a buffer was live, a Complete that its memory was pending. An address of which no
// event has told yet is as at the end.
//
// What there is at the end need not be entered. What is not needs memory by the events' live buffers alone.
type Back[T any] map[alloc.Ptr]Was[T]

// Was is what there was at an address.
type Was[T any] struct {
	Is    State
	What  T
	atEnd bool // there is something at the end, or was: Nothing must not be forgotten
}

// State is that of an address.
type State uint8

// The states.
const (
	Unknown State = iota // no event has told yet
	Nothing
	Live
	Pending
)

// Enter says what there is at the end.
func (b Back[T]) Enter(p alloc.Ptr, is State, what T) { b[p] = Was[T]{is, what, true} }

// Undo takes back an event about a buffer, of which it tells what it was. It returns what there was
// after the event, as far as that is known.
func (b Back[T]) Undo(e Effect, p alloc.Ptr, what T) (after Was[T]) {
	after, known := b[p]
	atEnd := after.atEnd || !known && e == Begin
	switch {
	case e == End:
		b[p] = Was[T]{Live, what, atEnd}
	case e == Complete:
		b[p] = Was[T]{Pending, what, atEnd}
	case e == Begin && atEnd:
		b[p] = Was[T]{Is: Nothing, atEnd: true}
	case e == Begin:
		delete(b, p)
	}
	return after
}
