package jsonstream

import (
	"encoding/json"
	"strconv"
)

// Amount is an amount of which -1, unknown, is null in JSON. Files of earlier versions have -1 there.
type Amount int64

// MarshalJSON writes null for what is unknown.
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
