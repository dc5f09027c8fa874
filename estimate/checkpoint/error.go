package checkpoint

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/jsontext"
)

// ErrUnknownArchitecture says, by errors.Is, that this package cannot build the model's layers. Its
// tensors are known all the same.
var ErrUnknownArchitecture = family.ErrUnknown

// ErrNoArchitecture says that a model's files hold tensors only: no config.json or metadata says
// how they are connected.
var ErrNoArchitecture = errors.New("no architecture")

// Error says what is wrong with a model file, and where in it.
type Error struct {
	File   string `json:"file"`            // its name
	Where  string `json:"where,omitempty"` // place in the file: a tensor, a key, a byte offset; may be empty
	Reason string `json:"reason"`
	Err    error  `json:"-"` // the error beneath; may be nil
}

// Error returns file, place, and reason.
func (e *Error) Error() string {
	text := "open " + e.File + ": "
	if e.Where != "" {
		text += e.Where + ": "
	}
	if e.Err == nil {
		return text + e.Reason
	}
	if e.Reason == "" {
		return text + e.Err.Error()
	}
	return text + e.Reason + ": " + e.Err.Error()
}

// Unwrap returns the error beneath.
func (e *Error) Unwrap() error { return e.Err }

// atTensor is an Error at a tensor.
func atTensor(file, tensor, format string, args ...any) error {
	return &Error{File: file, Where: fmt.Sprintf("tensor %q", jsontext.Shorten(tensor)), Err: fmt.Errorf(format, args...)}
}

// inFile is an Error of the whole file.
func inFile(file, format string, args ...any) error {
	return &Error{File: file, Reason: fmt.Sprintf(format, args...)}
}
