package tape

// Slot is a place on a tape for what layers of one kind hand each other while they record, such as rotary
// tables, or keys and values that later layers borrow. The package of these layers declares it
// as a variable; each tape has a value of its own there, which begins as the zero value. So the
// tape itself knows no layer.
type Slot[T any] struct {
	_ byte // so that no two slots have one address
}

// filled is a slot's value on a tape.
type filled struct{ slot, value any }

// Of is the tape's value of the slot, to read and to change.
func (s *Slot[T]) Of(t *Tape) *T {
	for i := range t.slots {
		if t.slots[i].slot == any(s) {
			return t.slots[i].value.(*T)
		}
	}
	v := new(T)
	t.slots = append(t.slots, filled{s, v})
	return v
}

// lasting is a slot's value with tensors that live until the forward pass is over.
type lasting interface{ Lasting() []Tensor }

// HoldLasting keeps alive what slots hold until the forward pass is over.
func (t *Tape) HoldLasting() {
	for _, s := range t.slots {
		if l, ok := s.value.(lasting); ok {
			for _, x := range l.Lasting() {
				t.Hold(x)
			}
		}
	}
}
