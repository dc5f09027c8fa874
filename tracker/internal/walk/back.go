package walk

import "github.com/gpumemtrack/gpumemtrack/alloc"

// Back is what there was at each address, while its user goes back through a history from its end. Each event
// tells what there was just before it: a Begin that there was nothing, an End that a buffer was live, a Complete
// that its memory was pending. An address that is not in the map was touched by no event so far: it is as at
// the end.
//
// A user that knows what there is at the end without Back need not enter it. The map then holds no more
// entries than buffers that were live before the event, and addresses that are in use at the end.
type Back[T any] map[alloc.Ptr]Was[T]

// Was says what there was at an address.
type Was[T any] struct {
	Is    State
	What  T
	atEnd bool // the address is in use at the end, so Nothing must stay in the map: without it the address would count as at the end
}

// State says what is at an address.
type State uint8

// The states.
const (
	Unknown State = iota // no event has told yet: as at the end
	Nothing
	Live
	Pending
)

// Enter says what there is at the end.
func (b Back[T]) Enter(p alloc.Ptr, is State, what T) { b[p] = Was[T]{is, what, true} }

// Undo takes back an event about the buffer what at p. It returns what was there after the event,
// as far as later events or Enter showed.
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
