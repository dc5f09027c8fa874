package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/jsontext"
)

// ErrUnknownArchitecture says, by errors.Is, that this package cannot build the model's layers. Its
// tensors are known all the same.
var ErrUnknownArchitecture = family.ErrUnknown

// ErrNoArchitecture says that a model's files hold tensors only: no config.json or metadata says
// how they are connected.
var ErrNoArchitecture = errors.New("no architecture")

// fileError says what is wrong with a model file, and where in it. It is an fs.ErrInvalid.
type fileError struct {
	file   string // its name
	where  string // place in the file: a tensor, a key, a byte offset; may be empty
	reason string
	err    error // the error beneath; may be nil
}

// Error returns file, place, and reason.
func (e *fileError) Error() string {
	text := "open " + e.file + ": "
	if e.where != "" {
		text += e.where + ": "
	}
	if e.err == nil {
		return text + e.reason
	}
	if e.reason == "" {
		return text + e.err.Error()
	}
	return text + e.reason + ": " + e.err.Error()
}

// Unwrap returns the error beneath.
func (e *fileError) Unwrap() error { return e.err }

// Is makes the error an fs.ErrInvalid.
func (e *fileError) Is(target error) bool { return target == fs.ErrInvalid }

// atTensor is an error at a tensor.
func atTensor(file, tensor, format string, args ...any) error {
	return &fileError{file: file, where: fmt.Sprintf("tensor %q", jsontext.Shorten(tensor)), err: fmt.Errorf(format, args...)}
}

// inFile is an error of the whole file.
func inFile(file, format string, args ...any) error {
	return &fileError{file: file, reason: fmt.Sprintf(format, args...)}
}
