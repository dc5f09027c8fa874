package otlp

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
)

// environment returns what Config.Getenv takes.
func environment(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

func TestEndpoints(t *testing.T) {
	const profiles, grpc = "/v1development/profiles", "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
	for name, test := range map[string]struct {
		endpoint string
		vars     map[string]string
		url      string
		grpc     bool
	}{
		"http":             {"http://c:4318", nil, "http://c:4318" + profiles, false},
		"path":             {"https://c/base/", nil, "https://c/base" + profiles, false},
		"grpc":             {"grpc://c:4317", nil, "http://c:4317" + grpc, true},
		"grpcs":            {"grpcs://c", nil, "https://c" + grpc, true},
		"port of grpc":     {"http://c:4317", nil, "http://c:4317" + grpc, true},
		"protocol":         {"http://c:4318", map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http://c:4318" + grpc, true},
		"its own protocol": {"http://c:4317", map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_PROFILES_PROTOCOL": "http/protobuf"}, "http://c:4317" + profiles, false},
		"variable":         {"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://e:4318/"}, "http://e:4318" + profiles, false},
		"its own variable": {"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://e:4318", "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT": "http://p:1/x"}, "http://p:1/x", false},
		"given":            {"http://c:4318", map[string]string{"OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT": "http://p:1/x"}, "http://c:4318" + profiles, false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Endpoint: test.endpoint, Getenv: environment(test.vars)}
			to, err := cfg.resolve(Profiles)
			require.NoError(t, err)
			assert.Equal(t, test.url, to.url)
			assert.Equal(t, test.grpc, to.grpc)
			assert.True(t, to.gzip)
			assert.Equal(t, 10*time.Second, to.timeout)
		})
	}
}

func TestSettingsOfTheEnvironment(t *testing.T) {
	cfg := Config{Endpoint: "http://c", Headers: map[string]string{"b": "own"}, Getenv: environment(map[string]string{
		"OTEL_EXPORTER_OTLP_HEADERS": "a=1%202, B=2", "OTEL_EXPORTER_OTLP_TIMEOUT": "250", "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
	})}
	to, err := cfg.resolve(Metrics)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"A": "1 2", "B": "own"}, to.headers)
	assert.Equal(t, 250*time.Millisecond, to.timeout)
	assert.False(t, to.gzip)

	for name, value := range map[string]string{
		"ENDPOINT": "collector", "PROTOCOL": "http/json", "COMPRESSION": "zstd", "HEADERS": "secret", "TIMEOUT": "10s",
		"CERTIFICATE": "/does/not/exist", "CLIENT_KEY": "/does/not/exist",
	} {
		cfg := Config{Getenv: environment(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c", "OTEL_EXPORTER_OTLP_" + name: value})}
		_, err := cfg.resolve(Metrics)
		if name == "ENDPOINT" {
			assert.ErrorContains(t, err, `"collector" is not an endpoint`)
			continue
		}
		assert.ErrorContains(t, err, "OTEL_EXPORTER_OTLP_", name)
	}
}

func newClient(t *testing.T, cfg Config) *Client {
	t.Helper()
	if cfg.Getenv == nil {
		cfg.Getenv = environment(nil)
	}
	c, err := NewClient(cfg, Metrics)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// TestTLS has a server whose certificate only OTEL_EXPORTER_OTLP_CERTIFICATE makes known, over HTTP and over gRPC.
func TestTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(grpcHandler(nil, nil))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	for _, scheme := range []string{"https", "grpcs"} {
		endpoint := scheme + "://" + server.Listener.Addr().String()
		answer, err := newClient(t, Config{Endpoint: endpoint, Getenv: environment(map[string]string{"OTEL_EXPORTER_OTLP_CERTIFICATE": file})}).Send(t.Context(), []byte{1})
		require.NoError(t, err)
		assert.Equal(t, Answer{Rejected: 3, Message: "why"}, answer)

		_, err = newClient(t, Config{Endpoint: endpoint}).Send(t.Context(), nil)
		var unknown *tls.CertificateVerificationError
		require.ErrorAs(t, err, &unknown)
	}
}

var partial = append([]byte{0x0a, 7, 0x08, 3, 0x12, 3}, "why"...)

// grpcHandler answers a request over gRPC with a partial success or with an error, and one over HTTP with a partial success.
func grpcHandler(fails error, got *[]byte) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(Metrics.procedure, connect.NewUnaryHandler(Metrics.procedure, func(_ context.Context, r *connect.Request[message]) (*connect.Response[message], error) {
		if got != nil {
			*got = r.Msg.bytes
		}
		if fails != nil {
			return nil, fails
		}
		return connect.NewResponse(&message{partial}), nil
	}, connect.WithCodec(rawCodec{})))
	mux.HandleFunc(Metrics.path, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write(partial)
	})
	return mux
}

// TestGRPC speaks gRPC without TLS.
func TestGRPC(t *testing.T) {
	detailed := connect.NewError(connect.CodeResourceExhausted, io.EOF)
	detail, err := connect.NewErrorDetail(durationpb.New(0)) // of another type than the wish to retry
	require.NoError(t, err)
	detailed.AddDetail(detail)
	var refused *RefusedError
	for name, test := range map[string]struct {
		fails error
		again bool
		none  bool
	}{
		"taken":          {},
		"unavailable":    {connect.NewError(connect.CodeUnavailable, io.EOF), true, false},
		"no such signal": {connect.NewError(connect.CodeUnimplemented, io.EOF), false, true},
		"bad data":       {connect.NewError(connect.CodeInvalidArgument, io.EOF), false, false},
		"exhausted":      {detailed, false, false}, // without a RetryInfo it is final
	} {
		t.Run(name, func(t *testing.T) {
			var got []byte
			server := httptest.NewUnstartedServer(grpcHandler(test.fails, &got))
			server.Config.Protocols = new(http.Protocols)
			server.Config.Protocols.SetUnencryptedHTTP2(true)
			server.Start()
			defer server.Close()
			client := newClient(t, Config{Endpoint: "grpc://" + server.Listener.Addr().String()})
			payload := bytes.Repeat([]byte("payload"), 1000)
			for range 8 { // what a client keeps of one request may not get into another, nor into the caller's payload
				_, _ = client.Send(t.Context(), payload[:len(payload)/2])
				assert.Equal(t, string(payload[:len(payload)/2]), string(got))
			}
			answer, err := client.Send(t.Context(), payload)
			assert.Equal(t, strings.Repeat("payload", 1000), string(got))
			assert.Equal(t, strings.Repeat("payload", 1000), string(payload))
			switch {
			case test.fails == nil:
				require.NoError(t, err)
				assert.Equal(t, Answer{Rejected: 3, Message: "why"}, answer)
			case test.again:
				var again *retryError
				require.ErrorAs(t, err, &again)
			default:
				require.ErrorAs(t, err, &refused)
				assert.Equal(t, test.none, refused.NoSuchSignal)
			}
		})
	}
}

// TestConnectionsThatBreak has a server that ends in the middle of an answer: the payload may be taken later.
func TestConnectionsThatBreak(t *testing.T) {
	for _, scheme := range []string{"http", "grpc"} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/grpc+proto")
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte{0, 0, 0, 0, 20, 1, 2})
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}))
		server.Config.Protocols = new(http.Protocols)
		server.Config.Protocols.SetHTTP1(true)
		server.Config.Protocols.SetUnencryptedHTTP2(true)
		server.Start()
		_, err := newClient(t, Config{Endpoint: scheme + "://" + server.Listener.Addr().String()}).Send(t.Context(), []byte("payload"))
		server.Close()
		var again *retryError
		assert.ErrorAs(t, err, &again, scheme)
	}
}

func TestStatusesOfHTTP(t *testing.T) {
	for status, again := range map[int]bool{400: false, 401: false, 404: false, 413: false, 429: true, 500: false, 502: true, 503: true, 504: true, 302: false} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-protobuf")
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(status)
			_, _ = w.Write(append([]byte{0x08, 3, 0x12, 9}, "bad \x1b data"...))
		}))
		_, err := newClient(t, Config{Endpoint: server.URL}).Send(t.Context(), nil)
		server.Close()
		require.ErrorContains(t, err, `"bad \x1b dat"`, status)
		var retry *retryError
		if assert.Equal(t, again, assert.ErrorAs(new(testing.T), err, &retry), status) && again {
			assert.Equal(t, 7*time.Second, retry.after)
		}
	}
}

func TestWishesOfTheServer(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "3": 3 * time.Second, "-3": 0, "soon": 0, "99999999": time.Hour,
		now.Add(time.Minute).Format(http.TimeFormat): time.Minute, now.Add(-time.Minute).Format(http.TimeFormat): 0,
	} {
		assert.Equal(t, want, retryAfter(text, now), text)
	}
	assert.Equal(t, 3*time.Second+time.Millisecond, parseRetryInfo([]byte{0x0a, 6, 0x08, 3, 0x10, 0xc0, 0x84, 0x3d}))
}

// FuzzAnswer reads damaged answers.
func FuzzAnswer(f *testing.F) {
	f.Add(partial)
	f.Fuzz(func(t *testing.T, text []byte) {
		assert.GreaterOrEqual(t, parseAnswer(text).Rejected, int64(0))
		assert.LessOrEqual(t, len(parseStatus("application/x-protobuf", text)), 2000)
		parseRetryInfo(text)
	})
}

// TestQueueIsBounded has more payloads than wait, and a server that takes none.
func TestQueueIsBounded(t *testing.T) {
	blocked := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-blocked }))
	defer server.Close()
	q := NewQueue(newClient(t, Config{Endpoint: server.URL, Timeout: time.Minute}))
	for range 3 * maxQueued {
		q.Add(make([]byte, maxQueuedBytes/16), 10)
	}
	q.mu.Lock()
	assert.LessOrEqual(t, q.bytes, maxQueuedBytes)
	assert.LessOrEqual(t, len(q.waiting), 16)
	q.mu.Unlock()
	close(blocked)
	stats := q.Close(t.Context())
	assert.Equal(t, int64(10*3*maxQueued), stats.Delivered+stats.Dropped)
	assert.Positive(t, stats.Delivered)
}
