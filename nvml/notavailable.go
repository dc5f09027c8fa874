package nvml

import (
	"errors"
	"fmt"
)

// notAvailableError is ErrNotAvailable with the reason alone within reach, so
// that two of them can be told in one sentence.
type notAvailableError struct{ reason string }

func notAvailable(format string, args ...any) error {
	return &notAvailableError{fmt.Sprintf(format, args...)}
}

func (e *notAvailableError) Error() string { return ErrNotAvailable.Error() + ": " + e.reason }

func (e *notAvailableError) Is(target error) bool { return target == ErrNotAvailable }

func reason(err error) string {
	if na, ok := errors.AsType[*notAvailableError](err); ok {
		return na.reason
	}
	return err.Error()
}
