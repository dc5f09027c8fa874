package alloc

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// Errors that a caller may act on, for errors.Is.
var (
	// ErrOutOfMemory is the class of *OutOfMemoryError.
	ErrOutOfMemory = errors.New("out of device memory")
	// ErrSize says that a size is impossible: negative, or larger than the memory that it is for.
	ErrSize = errors.New("invalid size")
	// ErrShape says that no tensor can have this shape or element type.
	ErrShape = errors.New("invalid shape")
	// ErrDoubleFree is the error of freeing memory that is free already.
	ErrDoubleFree = errors.New("freed twice")
	// ErrUnknownPtr is the error of an address that is not the start of an
	// allocation here.
	ErrUnknownPtr = errors.New("not an address of this allocator")
	// ErrClosed is the error of using something after its Close.
	ErrClosed = errors.New("closed")
	// ErrReentrant is the error of a cache that a method of its Device calls: see Device.
	ErrReentrant = errors.New("called by one of the device's own methods, which must return first")
	// ErrBrokenDriver says that the driver returned address 0, or memory that overlaps live memory.
	// The memory that it returned is neither used nor freed.
	ErrBrokenDriver = errors.New("the driver returned an invalid or overlapping address")
)

// OutOfMemoryError says that a device has no memory for a request, with the values at that moment.
// A negative value is unknown.
type OutOfMemoryError struct {
	Device    string `json:"device"`          // name and ordinal
	Requested Bytes  `json:"requested_bytes"` // what the caller asked for
	Free      Bytes  `json:"free_bytes"`      // as the driver says, for all processes together
	Total     Bytes  `json:"total_bytes"`     // as the driver says
	Reserved  Bytes  `json:"reserved_bytes"`  // segments reserved by the cache
	Allocated Bytes  `json:"allocated_bytes"` // blocks in callers' hands
	// LargestInactive is the largest inactive block. It was too small for the request, or belongs
	// to the other pool.
	LargestInactive Bytes `json:"largest_inactive_bytes"`
	Err             error `json:"-"` // the driver's own error; may be nil
}

// MarshalJSON writes the values, and null for those that are unknown.
func (e OutOfMemoryError) MarshalJSON() ([]byte, error) {
	type values OutOfMemoryError
	return json.Marshal(struct {
		values
		Free            *Bytes `json:"free_bytes"`
		Total           *Bytes `json:"total_bytes"`
		Reserved        *Bytes `json:"reserved_bytes"`
		Allocated       *Bytes `json:"allocated_bytes"`
		LargestInactive *Bytes `json:"largest_inactive_bytes"`
	}{values(e), known(e.Free), known(e.Total), known(e.Reserved), known(e.Allocated), known(e.LargestInactive)})
}

// known returns nil for an unknown amount.
func known(n Bytes) *Bytes {
	if n < 0 {
		return nil
	}
	return &n
}

// Error says what was requested, of which device, and what was free.
func (e *OutOfMemoryError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "alloc %v on %s: %v", e.Requested, text.Line(e.Device), ErrOutOfMemory)
	sep := ": "
	for _, field := range []struct {
		name  string
		value Bytes
	}{
		{"free", e.Free}, {"total", e.Total}, {"reserved", e.Reserved},
		{"allocated", e.Allocated}, {"largest inactive block", e.LargestInactive},
	} {
		if field.value >= 0 {
			fmt.Fprintf(&b, "%s%s %v", sep, field.name, field.value)
			sep = ", "
		}
	}
	return b.String()
}

// Unwrap returns ErrOutOfMemory, and the driver's own error.
func (e *OutOfMemoryError) Unwrap() []error { return []error{ErrOutOfMemory, e.Err} }
