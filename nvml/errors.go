package nvml

import (
	"errors"
	"fmt"
)

// Errors that a caller may act on, with errors.Is.
var (
	// ErrNotAvailable is the class of errors that say why there is no source:
	// no library, no driver, no GPU, another system than Linux.
	ErrNotAvailable = errors.New("no GPU driver answers")
	// ErrLost says that a device fell off the bus or must be reset; nothing
	// but a reset, or a restart of the container, brings it back.
	ErrLost = errors.New("the GPU is lost")
	// ErrNoDevice says that no device has the index or UUID asked for.
	ErrNoDevice = errors.New("no such GPU")
	// ErrUnknown is the class of errors that say why a value cannot be had here at all:
	// asking again gives the same answer.
	ErrUnknown = errors.New("the value is unknown here")
)

// unknownError is an error of the class ErrUnknown.
type unknownError string

const (
	errNotSupported unknownError = "not supported by this device"
	errNoPermission unknownError = "not permitted"
	// errHidden means that the driver's process numbers are not those of this PID namespace.
	errHidden unknownError = "processes are hidden from this PID namespace"
	// errNoValue: the driver lists the process, but not its memory.
	errNoValue  unknownError = "the driver does not report the memory of a process here"
	errNoSample unknownError = "the driver has no sample of the last second"
)

func (e unknownError) Error() string { return string(e) }

// Is makes errors.Is work for ErrUnknown.
func (e unknownError) Is(target error) bool { return target == ErrUnknown }

// callError is a call into the driver's library that failed.
type callError struct {
	function string // name as in NVML's documentation
	code     int    // nvmlReturn_t
}

// Error says which call failed, how, and what may help.
func (e *callError) Error() string {
	text, ok := codes[e.code]
	if !ok {
		text = "an unknown error"
	}
	return fmt.Sprintf("%s: %s (code %d)", e.function, text, e.code)
}

// Is makes errors.Is work for ErrLost, ErrUnknown and the error that the code of the call stands for.
func (e *callError) Is(target error) bool {
	switch e.code {
	case codeNotSupported, codeFunctionNotFound:
		return target == errNotSupported || target == ErrUnknown
	case codeNoPermission:
		return target == errNoPermission || target == ErrUnknown
	case codeLost, codeResetRequired:
		return target == ErrLost
	}
	return false
}

// Codes of nvmlReturn_t that are acted on.
const (
	codeSuccess          = 0
	codeInvalidArgument  = 2
	codeNotSupported     = 3
	codeNoPermission     = 4
	codeNotFound         = 6
	codeInsufficientSize = 7
	codeFunctionNotFound = 13
	codeLost             = 15
	codeResetRequired    = 16
	codeVersionMismatch  = 25
	codeUnknown          = 999
)

// codes are NVML's error texts in our words. The library's own nvmlErrorString
// is not asked, since a driver may lack it and a missing function ends the process.
var codes = map[int]string{
	1:                    "NVML is not initialised",
	codeInvalidArgument:  "invalid argument",
	codeNotSupported:     "not supported",
	codeNoPermission:     "no permission: run as root, or give the container the capability",
	codeNotFound:         "not found",
	7:                    "the list grew while it was read",
	8:                    "a power cable is missing",
	9:                    "the driver is not loaded: check that nvidia-smi works, and in a container that the GPU is passed in",
	10:                   "the call took too long",
	12:                   "the driver's library was not found",
	codeFunctionNotFound: "this driver lacks the function",
	codeLost:             "the GPU is lost: it fell off the bus; reset it or restart the machine",
	codeResetRequired:    "the GPU must be reset",
	17:                   "the operating system or a container blocks the GPU",
	18:                   "library and kernel module have different versions: restart after the driver's update",
	20:                   "the driver is out of memory",
	codeVersionMismatch:  "the driver does not know this version of the call",
	codeUnknown:          "the driver's unknown error; in a container after `systemctl daemon-reload` only a restart of the container helps",
}

// notAvailableError is ErrNotAvailable with its reason, which can be read alone, so
// that two reasons can stand in one sentence.
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
