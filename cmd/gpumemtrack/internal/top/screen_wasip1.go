package top

import (
	"context"
	"errors"
	"time"
)

func topScreen(context.Context, *topWatch, time.Duration) error {
	return errors.New("top: there is no screen here: --once prints one picture")
}
