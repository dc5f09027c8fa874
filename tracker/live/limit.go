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
		select {
		case l <- struct{}{}:
			defer l.leave()
			page(w, r)
		default:
			w.Header().Set("Retry-After", "5")
			http.Error(w, "too many requests of this kind are in work: try again in a few seconds", http.StatusServiceUnavailable)
		}
	}
}

// enter waits until there is one request less, or ctx ends. The caller leaves.
func (l limit) enter(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l limit) leave() { <-l }
