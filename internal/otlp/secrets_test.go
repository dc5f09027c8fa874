package otlp

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSecretsAreNotShown has a secret wherever a setting may have one. No message has it.
func TestSecretsAreNotShown(t *testing.T) {
	for _, endpoint := range []string{
		"http://user:s3cret@c:4318?x=1", "http://c:4318?key=s3cret", "ftp://user:s3cret@c", "http://user:s3%cret@c", "user:s3cret@c", "http://c/#s3cret",
	} {
		_, err := NewClient(Config{Endpoint: endpoint, Getenv: environment(nil)}, Metrics)
		require.ErrorContains(t, err, "is not an endpoint", endpoint)
		assert.NotRegexp(t, "s3|cret", err.Error())
	}
	for _, headers := range []string{"s3cret", "Authorization: Bearer s3cret", "a=b,s3cret", "a=s3cret%zz", "a=s3cret%0A", "Bearer s3=cret%0A", "=s3cret"} {
		_, err := NewClient(Config{Endpoint: "http://c", Getenv: environment(map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": headers})}, Metrics)
		require.Regexp(t, "header|HEADERS", err, headers)
		assert.NotContains(t, err.Error(), "cret")
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		assert.Equal(t, "s3cret", password)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	address := server.Listener.Addr().String()
	for _, scheme := range []string{"http", "grpc"} {
		client := newClient(t, Config{Endpoint: scheme + "://user:s3cret@" + address})
		_, refused := client.Send(t.Context(), nil)
		require.Error(t, refused)
		assert.NotContains(t, client.String()+refused.Error(), "s3cret")
	}
	server.Close()
	for _, scheme := range []string{"http", "grpc"} {
		_, err := newClient(t, Config{Endpoint: scheme + "://user:s3cret@" + address}).Send(t.Context(), nil)
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "s3cret")
	}
}

// TestServersThatAnswerOtherwise has servers that take a payload with another status, or with a warning. Neither is sent again.
func TestServersThatAnswerOtherwise(t *testing.T) {
	status, body := http.StatusOK, append([]byte{0x0a, 5, 0x12, 3}, "old"...)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write(body)
	}))
	defer server.Close()
	var warnings []string
	client := newClient(t, Config{Endpoint: server.URL, Warn: func(err error) { warnings = append(warnings, err.Error()) }})
	for range 3 {
		answer, err := client.Deliver(t.Context(), nil)
		require.NoError(t, err)
		assert.Equal(t, Answer{Message: "old"}, answer)
	}
	assert.Equal(t, []string{"the server took it, and says: old"}, warnings)

	body = nil
	for _, status = range []int{http.StatusAccepted, http.StatusNoContent} {
		_, err := client.Deliver(t.Context(), nil)
		require.NoError(t, err, status)
	}
}

// TestTransportsOfTheProgram has a program that wraps the usual transport, and that uses its TLS settings elsewhere too.
func TestTransportsOfTheProgram(t *testing.T) {
	usual := http.DefaultTransport
	defer func() { http.DefaultTransport = usual }()
	http.DefaultTransport = struct{ http.RoundTripper }{usual}
	own := new(tls.Config)
	client := newClient(t, Config{Endpoint: "https://127.0.0.1:1", TLS: own, Timeout: time.Second})
	_, err := client.Send(t.Context(), nil)
	require.Error(t, err)
	assert.Empty(t, own.NextProtos)
}

// TestQueueSaysWhyItDropped drops without an attempt, by a server that is slow, and after the end.
func TestQueueSaysWhyItDropped(t *testing.T) {
	began, blocked := make(chan struct{}, 1), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		select {
		case began <- struct{}{}:
		default:
		}
		<-blocked
	}))
	defer server.Close()
	q := NewQueue(newClient(t, Config{Endpoint: server.URL, Timeout: time.Minute}))
	q.Add(nil, 1)
	<-began
	for range maxQueued {
		q.Add(nil, 1)
	}
	require.ErrorIs(t, q.Stats().LastError, errTooSlow)

	waited := make(chan error)
	go func() { waited <- q.Wait(context.Background()) }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stats := q.Close(ctx)
	close(blocked)
	require.NoError(t, <-waited)
	assert.Equal(t, int64(maxQueued+1), stats.Dropped)
	require.Error(t, stats.LastError)
	q.Add(nil, 1)
	require.NoError(t, q.Wait(t.Context()))
	assert.Equal(t, stats.Dropped+1, q.Stats().Dropped)

	never := NewQueue(newClient(t, Config{Endpoint: server.URL}))
	never.stop() // before there is anything to send
	<-never.closed
	never.Add(nil, 1)
	require.ErrorIs(t, never.Close(ctx).LastError, context.Canceled)
}
