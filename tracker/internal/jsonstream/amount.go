package jsonstream

import (
	"encoding/json"
	"strconv"
)

// Amount is an amount in bytes. -1 means unknown, and is null in JSON; files of earlier versions
// have -1.
type Amount int64

// MarshalJSON writes null for an unknown amount.
func (a Amount) MarshalJSON() ([]byte, error) {
	if a == -1 {
		return []byte("null"), nil
	}
	return strconv.AppendInt(nil, int64(a), 10), nil
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (a *Amount) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*a = -1
		return nil
	}
	return json.Unmarshal(text, (*int64)(a))
}
