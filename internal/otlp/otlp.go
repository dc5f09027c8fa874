// Package otlp sends requests to an OpenTelemetry Collector or to another server of OTLP 1.11: Protocol Buffers over HTTP or
// gRPC, with retries. The payloads are made by its callers: it reads only answers.
//
// A [Client] is for one signal. Deliver returns when the server has taken a payload or has refused it for good; until then it
// sends the same bytes again, with exponential back-off. So a server that has taken a payload and died before it answered
// gets the same profile IDs again.
//
// gRPC is spoken by connectrpc.com/connect over net/http. google.golang.org/grpc would be a larger dependency than all others
// of the module together.
package otlp

import (
	"fmt"
	"time"
)

// Signal is a kind of data, with the addresses that servers have for it.
type Signal struct {
	Name      string // in the names of environment variables: "METRICS"
	path      string // over HTTP, below the endpoint
	procedure string // over gRPC
}

// The signals. That of profiles is in development: a Collector needs --feature-gates=+service.profilesSupport.
var (
	Metrics  = Signal{"METRICS", "/v1/metrics", "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"}
	Profiles = Signal{"PROFILES", "/v1development/profiles", "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"}
)

// MaxRequestBytes bounds what callers put into a payload. The Collector's gRPC receiver refuses messages above 4 MiB unless it
// is configured otherwise.
const MaxRequestBytes = 4 << 20

// Answer is what a server says of a payload that it has taken.
type Answer struct {
	Rejected int64  // data points or profiles that it did not take, and that must not be sent again
	Message  string // why, or a warning
}

// RefusedError says that the server will not take the payload, now or later.
type RefusedError struct {
	Why string
	// NoSuchSignal reports that the server has no receiver for the signal, whatever is sent.
	NoSuchSignal bool
}

// Error says what the server answered.
func (e *RefusedError) Error() string { return "refused: " + e.Why }

// retryError is a failure after which the same payload may be taken.
type retryError struct {
	err   error
	after time.Duration // the server's own wish; 0 if it has none
}

func (e *retryError) Error() string { return fmt.Sprintf("%v: trying again", e.err) }
func (e *retryError) Unwrap() error { return e.err }
