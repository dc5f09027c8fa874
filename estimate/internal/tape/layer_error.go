package tape

import (
	"fmt"
)

// LayerError says which layer of a model is wrong, and how.
type LayerError struct {
	Path   string // such as "layer1.0.conv1"; empty for the model itself
	Layer  string // its type, such as "Conv2d"
	Reason string
	Err    error // the cause, if there is one
}

// Error names the layer by its path, and says what is wrong.
func (e *LayerError) Error() string {
	where := e.Path
	if where == "" {
		where = "the model"
	}
	text := fmt.Sprintf("estimate %s (%s)", where, e.Layer)
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the error beneath, if there is one.
func (e *LayerError) Unwrap() error { return e.Err }
