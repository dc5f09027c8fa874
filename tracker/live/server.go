package live

import (
	"context"
	"net/http"
	"time"
)

const (
	maxCopies  = 4  // answers at a time that are made from a copy of the whole ledger
	maxLight   = 4  // answers at a time that are made from its groups and call sites
	maxReaders = 64 // clients of marks at a time
	maxWaiting = 64 // profiles at a time that wait for their seconds to pass
)

type handler struct {
	source  Source
	inside  bool   // the source's memory is of this program
	run     string // tells the marks of this handler from those of a program before
	pages   map[string]http.HandlerFunc
	hosts   map[string]bool // that AllowHosts lets in
	busy    time.Duration   // for a place to make an answer
	copies  limit
	light   limit
	waiting limit
	files   limit
	readers limit
}

// wait waits for some time, or until the client is gone.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
