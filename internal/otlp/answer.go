package otlp

import (
	"iter"
	"mime"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// field is a field of a message in Protocol Buffers: a number, or bytes.
type field struct {
	number protowire.Number
	value  uint64
	inside []byte
}

// fields iterates over the fields of a message, and ends where it is damaged.
func fields(message []byte) iter.Seq[field] {
	return func(yield func(field) bool) {
		for len(message) > 0 {
			number, kind, n := protowire.ConsumeTag(message)
			if n < 0 {
				return
			}
			message = message[n:]
			f := field{number: number}
			switch kind {
			case protowire.VarintType:
				f.value, n = protowire.ConsumeVarint(message)
			case protowire.BytesType:
				f.inside, n = protowire.ConsumeBytes(message)
			default:
				n = protowire.ConsumeFieldValue(number, kind, message)
			}
			if n < 0 || !yield(f) {
				return
			}
			message = message[n:]
		}
	}
}

// parseAnswer reads an ExportMetricsServiceResponse or an ExportProfilesServiceResponse, which have the same fields.
func parseAnswer(response []byte) (a Answer) {
	for partial := range fields(response) {
		if partial.number != 1 {
			continue
		}
		for f := range fields(partial.inside) {
			switch f.number {
			case 1:
				a.Rejected = max(0, int64(f.value))
			case 2:
				a.Message = cleaned(f.inside)
			}
		}
	}
	return a
}

// parseStatus returns the message of a google.rpc.Status, or the beginning of a text.
func parseStatus(contentType string, body []byte) string {
	switch kind, _, _ := mime.ParseMediaType(contentType); {
	case kind == "application/x-protobuf":
		for f := range fields(body) {
			if f.number == 2 {
				return cleaned(f.inside)
			}
		}
		return ""
	case strings.HasPrefix(kind, "text/plain"), kind == "application/json":
		return cleaned(body)
	}
	return ""
}

// cleaned returns a server's words as one line that is harmless in a terminal.
func cleaned(words []byte) string {
	const most = 200
	line := strings.TrimSpace(text.Line(text.UTF8(string(words[:min(len(words), most)]))))
	if len(words) > most {
		line += "..."
	}
	return line
}

// parseRetryInfo returns the delay of a google.rpc.RetryInfo.
func parseRetryInfo(info []byte) (delay time.Duration) {
	for f := range fields(info) {
		if f.number != 1 {
			continue
		}
		for part := range fields(f.inside) {
			switch part.number {
			case 1:
				delay += time.Duration(min(part.value, 1<<20)) * time.Second
			case 2:
				delay += time.Duration(min(part.value, 1<<30))
			}
		}
	}
	return delay
}
