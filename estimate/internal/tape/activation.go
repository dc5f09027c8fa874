package tape

// Mul is x * y with y broadcast to x, which keeps each factor that the other's
// gradient needs.
func Mul(t *Tape, x, y Tensor) (Tensor, error) {
	o := Op{In: []Tensor{x, y}, Shape: x.Shape}
	switch {
	case x.Grad && y.Grad:
		o.Keep = o.In
	case x.Grad:
		o.Keep = o.In[1:]
	case y.Grad:
		o.Keep = o.In[:1]
	}
	if y.Grad && !y.Shape.Equal(x.Shape) { // its gradient is a sum of one as large as x
		o.BackwardWorkspace = t.Size(x)
	}
	return t.Op(o)
}
