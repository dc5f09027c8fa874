package tracker

import (
	"encoding/json"
	"strconv"
	"time"
)

// appendJSON writes what the struct's tags say.
func (a allocationJSON) appendJSON(b []byte) ([]byte, error) {
	b = strconv.AppendUint(append(b, `{"seq":`...), a.Seq, 10)
	b = a.Time.AppendFormat(append(b, `,"time":"`...), time.RFC3339Nano)
	b = strconv.AppendUint(append(b, `","address":`...), uint64(a.Ptr), 10)
	b = strconv.AppendInt(append(b, `,"site":`...), int64(a.Site), 10)
	b = strconv.AppendInt(append(b, `,"allocated_bytes":`...), int64(a.Allocated), 10)
	for _, text := range [...]struct{ key, value string }{{`,"label":`, a.Label}, {`,"section":`, a.Section}} {
		if text.value != "" {
			quoted, err := json.Marshal(text.value)
			if err != nil {
				return b, err
			}
			b = append(append(b, text.key...), quoted...)
		}
	}
	if a.Registered {
		b = append(b, `,"registered":true`...)
	}
	if a.Lost {
		b = append(b, `,"lost":true`...)
	}
	return append(b, '}'), nil
}
