package live

import (
	"context"
	"net/http"
)

// limit bounds how many requests of a kind are in work.
type limit chan struct{}

func newLimit(n int) limit { return make(limit, n) }

// guard answers 503 while there are as many requests as may be.
func (l limit) guard(page http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !l.try() {
			refuse(w, errBusy)
			return
		}
		defer l.leave()
		page(w, r)
	}
}

// try enters if there is room. The caller leaves.
func (l limit) try() bool {
	select {
	case l <- struct{}{}:
		return true
	default:
		return false
	}
}

// enter waits until there is one request less, or ctx ends. The caller leaves.
func (l limit) enter(ctx context.Context) error {
	if l.try() {
		return nil
	}
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l limit) leave() { <-l }
