//go:build cuda && cgo

package cucontext

import (
	"errors"

	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
)

// Code returns the driver's number of an error that came from gorgonia.org/cu,
// which does not export the error's type.
func Code(err error) (code int, ok bool) { return codeAs(cu.Success, err) }

func codeAs[T interface {
	~int
	error
}](_ T, err error) (int, bool) {
	var own T
	if !errors.As(err, &own) {
		return 0, false
	}
	return int(own), true
}

// lostTo: of a lost device the driver says nothing more, and nothing was freed.
func lostTo(err error) bool {
	code, ok := Code(err)
	return ok && cuda.Error(code).Lost()
}

// ownError is the error of the call that ended a batch: the errors of a batch are
// one for each of its calls, in their order.
func ownError(batch error) error {
	if list, ok := batch.(interface{ ListErrors() []error }); ok {
		if errs := list.ListErrors(); len(errs) > 0 {
			return errs[len(errs)-1]
		}
	}
	return batch
}
