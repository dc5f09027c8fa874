package tape

// Identity passes its input on.
type Identity struct{}

func (Identity) Declare(*Declaration) {}

func (Identity) Forward(_ *Tape, x Tensor) (Tensor, error) { return x, nil }
