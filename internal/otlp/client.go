package otlp

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
)

// Client sends the payloads of one signal to one server. Its methods may be called from any goroutine.
type Client struct {
	to                  target
	http                *http.Client
	grpc                *connect.Client[message, message] // nil over HTTP
	backoff, backoffMax time.Duration
	retries             atomic.Int64

	warn   func(error)
	mu     sync.Mutex
	warned map[string]bool // the texts of warnings since a payload was taken
}

// NewClient returns a client. It sends nothing. The error says which setting is wrong.
func NewClient(cfg Config, signal Signal) (*Client, error) {
	to, err := cfg.resolve(signal)
	if err != nil {
		return nil, err
	}
	c := &Client{to: to, backoff: cmp.Or(cfg.Backoff, time.Second), backoffMax: cmp.Or(cfg.BackoffMax, time.Minute), warn: cfg.Warn}
	transport := cfg.Transport
	if transport == nil {
		own := &http.Transport{Proxy: http.ProxyFromEnvironment, IdleConnTimeout: time.Minute}
		if usual, ok := http.DefaultTransport.(*http.Transport); ok { // a program may have wrapped it
			own = usual.Clone()
		}
		own.TLSClientConfig = to.tls.Clone() // a Transport alters its own
		own.Protocols = new(http.Protocols)
		own.Protocols.SetHTTP2(true)
		own.Protocols.SetHTTP1(!to.grpc)
		own.Protocols.SetUnencryptedHTTP2(to.grpc)
		transport = own
	}
	c.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if to.grpc {
		options := []connect.ClientOption{connect.WithGRPC(), connect.WithCodec(rawCodec{}), connect.WithReadMaxBytes(maxAnswerBytes)}
		if to.gzip {
			options = append(options, connect.WithSendGzip())
		}
		c.grpc = connect.NewClient[message, message](c.http, to.url, options...)
	}
	return c, nil
}

// String returns the URL, without a password.
func (c *Client) String() string { return c.to.shown }

// Retries returns how often a payload was sent again.
func (c *Client) Retries() int64 { return c.retries.Load() }

// Warn passes a warning on, if it was not passed on already since a payload was taken.
func (c *Client) Warn(err error) {
	const most = 16
	text := err.Error()
	c.mu.Lock()
	again := c.warned[text] || len(c.warned) >= most
	if !again {
		if c.warned == nil {
			c.warned = make(map[string]bool)
		}
		c.warned[text] = true
	}
	c.mu.Unlock()
	if !again && c.warn != nil {
		c.warn(err)
	}
}

func (c *Client) taken() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.warned)
}

// Close closes the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Deliver sends a payload until the server has taken it. It is a *RefusedError if the server will never take it, or says that
// ctx was done first, with the failure of the last attempt. Then the server may have taken it: a caller that sends it later
// sends the same bytes.
func (c *Client) Deliver(ctx context.Context, payload []byte) (Answer, error) {
	wait := c.backoff
	for {
		answer, err := c.Send(ctx, payload)
		var again *retryError
		if !errors.As(err, &again) {
			switch {
			case err != nil || answer.Rejected > 0: // the caller counts what is lost
			case answer.Message != "":
				c.Warn(fmt.Errorf("the server took it, and says: %s", answer.Message))
			default:
				c.taken()
			}
			return answer, err
		}
		if ctx.Err() == nil {
			c.Warn(again)
		}
		// At least half of the time, so that many programs do not return together.
		delay := max(again.after, wait/2+rand.N(wait/2+1))
		wait = min(2*wait, c.backoffMax)
		timer := time.NewTimer(delay)
		select {
		case <-ctx.Done():
			timer.Stop()
			return Answer{}, fmt.Errorf("%w: %w", context.Cause(ctx), again.err)
		case <-timer.C:
		}
		c.retries.Add(1)
	}
}

// Send sends a payload once. The error is a *RefusedError, or says what failed now and may work later.
func (c *Client) Send(ctx context.Context, payload []byte) (Answer, error) {
	attempt, cancel := context.WithTimeout(ctx, c.to.timeout)
	defer cancel()
	if c.grpc != nil {
		return c.sendGRPC(attempt, payload)
	}
	return c.sendHTTP(attempt, payload)
}

const (
	contentType    = "application/x-protobuf"
	userAgent      = "gpumemtrack"
	maxAnswerBytes = 1 << 20
)

func (c *Client) sendHTTP(ctx context.Context, payload []byte) (Answer, error) {
	body := payload
	if c.to.gzip {
		body = packed(payload)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.to.url, bytes.NewReader(body))
	if err != nil {
		return Answer{}, &RefusedError{Why: err.Error()}
	}
	for key, value := range c.to.headers {
		request.Header.Set(key, value)
	}
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("User-Agent", userAgent)
	if c.to.gzip {
		request.Header.Set("Content-Encoding", "gzip")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return Answer{}, &retryError{err: err}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	if response.StatusCode/100 == 2 { // the protocol has 200 only, but some servers answer 202 or 204
		if err != nil { // whether it was taken is not known
			return Answer{}, &retryError{err: err}
		}
		return parseAnswer(text), nil
	}
	why := fmt.Sprintf("%s from %s", response.Status, c.to.shown)
	if message := parseStatus(response.Header.Get("Content-Type"), text); message != "" {
		why += ": " + message
	}
	switch response.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return Answer{}, &retryError{errors.New(why), retryAfter(response.Header.Get("Retry-After"), time.Now())}
	case http.StatusNotFound:
		return Answer{}, &RefusedError{Why: why, NoSuchSignal: true}
	}
	return Answer{}, &RefusedError{Why: why}
}

func packed(payload []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed) // the level is valid
	_, _ = w.Write(payload)                           // a Buffer takes everything
	_ = w.Close()
	return out.Bytes()
}

// retryAfter reads a number of seconds or a date. A wish for more than an hour counts as an hour.
func retryAfter(text string, now time.Time) time.Duration {
	var wish time.Duration
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		wish = time.Duration(seconds) * time.Second
	} else if date, err := http.ParseTime(text); err == nil {
		wish = date.Sub(now)
	}
	return min(max(wish, 0), time.Hour)
}

// message is an encoded request or answer, for connect.
type message struct{ bytes []byte }

// rawCodec passes encoded messages on. connect also reads a status with it.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) {
	switch v := v.(type) {
	case *message: // connect keeps the bytes that it gets, and writes to them later
		return bytes.Clone(v.bytes), nil
	case proto.Message:
		return proto.Marshal(v)
	}
	return nil, fmt.Errorf("%T is no message", v)
}

func (rawCodec) Unmarshal(text []byte, v any) error {
	switch v := v.(type) {
	case *message:
		v.bytes = bytes.Clone(text)
		return nil
	case proto.Message:
		return proto.Unmarshal(text, v)
	}
	return fmt.Errorf("%T is no message", v)
}

func (c *Client) sendGRPC(ctx context.Context, payload []byte) (Answer, error) {
	request := connect.NewRequest(&message{payload})
	for key, value := range c.to.headers {
		request.Header().Set(key, value)
	}
	request.Header().Set("User-Agent", userAgent)
	response, err := c.grpc.CallUnary(ctx, request)
	if err == nil {
		return parseAnswer(response.Msg.bytes), nil
	}
	var failure *connect.Error
	if !errors.As(err, &failure) || !connect.IsWireError(err) { // the connection failed, maybe in the middle of an answer
		return Answer{}, &retryError{err: fmt.Errorf("%w (%s)", err, c.to.shown)}
	}
	after, wished := time.Duration(0), false
	for _, detail := range failure.Details() {
		if strings.HasSuffix(detail.Type(), "google.rpc.RetryInfo") {
			after, wished = min(parseRetryInfo(detail.Bytes()), time.Hour), true
		}
	}
	switch failure.Code() {
	case connect.CodeResourceExhausted:
		if !wished {
			break
		}
		fallthrough
	case connect.CodeCanceled, connect.CodeDeadlineExceeded, connect.CodeAborted, connect.CodeOutOfRange, connect.CodeUnavailable, connect.CodeDataLoss:
		return Answer{}, &retryError{fmt.Errorf("%w (%s)", err, c.to.shown), after}
	}
	return Answer{}, &RefusedError{Why: fmt.Sprintf("%v (%s)", err, c.to.shown), NoSuchSignal: failure.Code() == connect.CodeUnimplemented}
}
