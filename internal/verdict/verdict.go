// Package verdict names why memory ran out, in the words that errors, dumps, pages and commands share, so that one
// situation has one name everywhere.
package verdict

import (
	"encoding/json"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Verdict is why an allocation failed. The zero value is Unknown.
type Verdict string

// The verdicts. Values.Of decides between them.
const (
	Unknown      Verdict = ""
	NoShortage   Verdict = "no shortage"            // more was free than was asked for
	Limit        Verdict = "limit"                  // the program set a limit, and memory was free
	TooLarge     Verdict = "larger than the device" // no state of the device could have held it
	Fragmented   Verdict = "fragmented"             // enough is free for the program, but in pieces
	Elsewhere    Verdict = "inactive elsewhere"     // enough is inactive in this process, where the request cannot use it
	OtherProcess Verdict = "other process"          // others hold what lacks
	TrulyFull    Verdict = "truly full"             // the program itself holds the memory
)

// MarshalJSON writes the words; null of Unknown.
func (v Verdict) MarshalJSON() ([]byte, error) {
	if v == Unknown {
		return []byte("null"), nil
	}
	return json.Marshal(string(v))
}

// OfAdvice returns the verdict that a sentence begins with: "truly full: free ..."; Unknown if it begins with none.
func OfAdvice(sentence string) Verdict {
	word, _, _ := strings.Cut(sentence, ":")
	switch v := Verdict(word); v {
	case NoShortage, Limit, TooLarge, Fragmented, Elsewhere, OtherProcess, TrulyFull:
		return v
	}
	return Unknown
}

// Values are what is known of a failed request, in bytes; a negative one is unknown.
type Values struct {
	Requested alloc.Bytes
	Capacity  alloc.Bytes // of the device
	Free      alloc.Bytes // as the driver says
	Inactive  alloc.Bytes // reserved by the allocator, and not allocated
	Reserved  alloc.Bytes // by the allocator
	Outside   alloc.Bytes // in use by others than the allocator that may be taken from it
	Limit     alloc.Bytes // that the program set to what the allocator may reserve
	Own       bool        // the process itself is known to hold most of the device
}

// Of goes by the first of these that would have helped, cheapest first.
func (v Values) Of() Verdict {
	switch {
	case v.Requested < 0:
		return Unknown
	case v.Capacity >= 0 && v.Requested > v.Capacity:
		return TooLarge
	case v.Limit >= 0 && v.Reserved >= 0 && v.Reserved+v.Requested > v.Limit-v.Limit/rounding && (v.Free < 0 || v.Free >= v.Requested):
		return Limit
	case v.Free < 0:
		return Unknown
	case v.Free >= v.Requested && !v.Nearly():
		return NoShortage
	}
	short := v.Short()
	switch {
	case v.Inactive >= short:
		return Fragmented
	case v.Outside >= short:
		return OtherProcess
	case v.Inactive < 0 && v.Reserved < 0 && !v.Own:
		return Unknown
	}
	return TrulyFull
}

// rounding is the part of an amount that the two decimals of a message may hide.
const rounding = 128

// Nearly reports whether the free memory is as much as was requested, but hardly more: the last 64th of a device is the
// driver's, which places allocations in pages of its own.
func (v Values) Nearly() bool {
	return v.Free >= v.Requested && v.Capacity >= 0 && v.Free-v.Requested < v.Capacity/64
}

// Short returns what lacks beside the free memory: all of the request if that is only nearly enough.
func (v Values) Short() alloc.Bytes {
	if v.Nearly() {
		return v.Requested
	}
	return v.Requested - v.Free
}
