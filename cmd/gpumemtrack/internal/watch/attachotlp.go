package watch

import (
	"context"
	"iter"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/push"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/otlp"
)

// pushAttached pushes what is watched until stop is called, which pushes once more, and says what did not reach the server.
func pushAttached(a *cli.App, w *attach.Watcher, endpoint string) (stop func(), err error) {
	warn := push.Warn(a)
	pusher, err := otlp.StartAll(otlp.Config{Endpoint: endpoint, Warn: warn}, func() iter.Seq[otlp.Source] {
		return func(yield func(otlp.Source) bool) {
			w.Sync()
			for _, s := range w.Sources() {
				if !yield(s) {
					return
				}
			}
		}
	})
	if err != nil {
		return nil, cli.UsageError("attach: --otlp: %w", err)
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), push.Last)
		defer cancel()
		if err := pusher.Stop(ctx); err != nil {
			warn(err)
		}
	}, nil
}
