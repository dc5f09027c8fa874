package live

import (
	"context"
	"errors"
	"net/http"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

func refuseMethod(w http.ResponseWriter, allowed, why string) {
	w.Header().Set("Allow", allowed)
	http.Error(w, why, http.StatusMethodNotAllowed)
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	for _, later := range []error{errBusy, errNothingYet, alloc.ErrClosed, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, later) {
			code = http.StatusServiceUnavailable
		}
	}
	if errors.Is(err, errBusy) {
		w.Header().Set("Retry-After", "5")
	}
	http.Error(w, err.Error(), code)
}

var (
	errBusy       = errors.New("too many requests of this kind are in work: try again in a few seconds")
	errNothingYet = errors.New("there is nothing to show yet: no memory was allocated")
)
