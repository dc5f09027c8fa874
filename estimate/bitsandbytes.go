package estimate

import "slices"

// Bitsandbytes says which version of bitsandbytes holds a base in 4 bits. Before 0.43.2 a product
// of its weights kept its input, as an attribute that autograd does not free: the inputs lived as
// long as the loop's code held the loss (autograd/_functions.py, MatMul4Bit, and
// github.com/bitsandbytes-foundation/bitsandbytes/pull/1270). A version that is not said is as old
// as that of PyTorch; if that is not said either, the figures are those of a new one, and
// the upper bounds of training those of an old one.
func Bitsandbytes(major, minor, patch int) Option {
	return func(c *config) { c.bitsandbytes = [3]int{major, minor, patch} }
}

// keepsInputs reports whether products of weights in 4 bits keep their inputs, if that is known.
func (c *config) keepsInputs() (keeps, known bool) {
	switch v := c.bitsandbytes; {
	case v != [3]int{}:
		return slices.Compare(v[:], []int{0, 43, 2}) < 0, true
	case c.release.major > 0: // 2.4 is of the same month
		return c.release.before(2, 4), true
	}
	return false, false
}

// keepInput lets a product of quantized weights keep its input, or notes that it may.
func (t *Tape) keepInput(o *Op, x Tensor) {
	if base := t.cfg.lora.Base; base != NF4 && base != NF4Double || !x.grad {
		return
	}
	switch keeps, known := t.cfg.keepsInputs(); {
	case keeps:
		o.Keep = append(o.Keep, x)
		s := &t.storages[x.storage]
		s.lingers = s.lingers || !t.inside
	case !known && !t.inside:
		t.inputsKept = append(t.inputsKept, x.storage)
	}
}
