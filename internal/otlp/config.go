package otlp

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// Config says where payloads go. The environment variables of OpenTelemetry's exporters apply where a field is zero; those
// of a signal, such as OTEL_EXPORTER_OTLP_METRICS_HEADERS, win over those of all.
type Config struct {
	// Endpoint is a URL: http://host:4318, https://host:4318, grpc://host:4317 or grpcs://host:4317. The signal's path is
	// appended for HTTP. An http or https URL means gRPC if OTEL_EXPORTER_OTLP_PROTOCOL says so, or, where that is not set, if
	// the port is 4317.
	Endpoint string
	Headers  map[string]string
	Timeout  time.Duration // of one attempt; default 10 s
	TLS      *tls.Config   // default: the system's roots, or OTEL_EXPORTER_OTLP_CERTIFICATE, _CLIENT_CERTIFICATE and _CLIENT_KEY

	// Backoff is the time before the first retry, BackoffMax that before later ones: it doubles each time, with jitter.
	// Defaults: 1 s, 1 min.
	Backoff, BackoffMax time.Duration

	// Warn is called when deliveries begin to fail, with what a user should know; nil if nobody wants to. It is called in any
	// goroutine.
	Warn func(error)

	Transport http.RoundTripper   // for tests
	Getenv    func(string) string // default os.Getenv
}

// target is a Config in which nothing is left open.
type target struct {
	url     string
	shown   string // url without a password, for messages
	grpc    bool
	plain   bool // no TLS
	gzip    bool
	headers map[string]string
	timeout time.Duration
	tls     *tls.Config
}

// env returns a variable of the signal, or that of all signals.
func (c *Config) env(s Signal, name string) string {
	return cmp.Or(c.getenv("OTEL_EXPORTER_OTLP_"+s.Name+"_"+name), c.getenv("OTEL_EXPORTER_OTLP_"+name))
}

func (c *Config) getenv(name string) string {
	if c.Getenv == nil {
		return strings.TrimSpace(os.Getenv(name))
	}
	return strings.TrimSpace(c.Getenv(name))
}

// resolve returns the target of a signal. The error says which setting is wrong and what it may be.
func (c *Config) resolve(s Signal) (t target, err error) {
	if t, err = c.address(s); err != nil {
		return t, err
	}
	switch compression := c.env(s, "COMPRESSION"); compression {
	case "", "gzip":
		t.gzip = true
	case "none":
	default:
		return t, fmt.Errorf("OTEL_EXPORTER_OTLP_COMPRESSION=%s: want gzip or none", compression)
	}
	if t.headers, err = parseHeaders(c.env(s, "HEADERS")); err != nil {
		return t, err
	}
	for key, value := range c.Headers {
		t.headers[http.CanonicalHeaderKey(key)] = value
	}
	for key, value := range t.headers {
		if err := checkHeader(key, value); err != nil {
			return t, err
		}
	}
	if t.timeout, err = c.timeout(s); err != nil {
		return t, err
	}
	if t.tls = c.TLS; t.tls == nil && !t.plain {
		t.tls, err = c.tlsConfig(s)
	}
	return t, err
}

// address finds the URL and the protocol.
func (c *Config) address(s Signal) (t target, err error) {
	own := c.getenv("OTEL_EXPORTER_OTLP_" + s.Name + "_ENDPOINT")
	endpoint := cmp.Or(c.Endpoint, own, c.getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	whole := c.Endpoint == "" && own != "" // a signal's own is used as it is
	if endpoint == "" {
		return t, errors.New("no endpoint: want a URL such as http://localhost:4318, or OTEL_EXPORTER_OTLP_ENDPOINT")
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return t, fmt.Errorf("%q is not an endpoint: want http://host:4318, https://host:4318, grpc://host:4317 or grpcs://host:4317", withoutSecrets(endpoint))
	}
	protocol := c.env(s, "PROTOCOL")
	switch u.Scheme {
	case "http", "https":
		t.plain = u.Scheme == "http"
		t.grpc = protocol == "grpc" || protocol == "" && u.Port() == "4317"
	case "grpc", "grpcs":
		t.plain, t.grpc, protocol = u.Scheme == "grpc", true, "grpc"
		u.Scheme = "http" + strings.TrimPrefix(u.Scheme, "grpc")
	default:
		return t, fmt.Errorf("%q is not an endpoint: no scheme %q: want http, https, grpc or grpcs", withoutSecrets(endpoint), u.Scheme)
	}
	if protocol != "" && protocol != "grpc" && protocol != "http/protobuf" {
		return t, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL=%s: want grpc or http/protobuf", protocol)
	}
	switch {
	case t.grpc:
		u.Path = s.procedure
	case !whole:
		u.Path = strings.TrimSuffix(u.Path, "/") + s.path
	}
	t.url, t.shown = u.String(), u.Redacted()
	return t, nil
}

// withoutSecrets returns the text of an endpoint, which may be no URL, without a user, a password and a query.
func withoutSecrets(endpoint string) string {
	before, query := endpoint, ""
	if at := strings.IndexAny(endpoint, "?#"); at >= 0 {
		before, query = endpoint[:at], endpoint[at:at+1]+"..."
	}
	if at := strings.LastIndexByte(before, '@'); at >= 0 {
		scheme, _, found := strings.Cut(before[:at], "://")
		if before = "...@" + before[at+1:]; found {
			before = scheme + "://" + before
		}
	}
	return before + query
}

// parseHeaders reads "key=value,key=value", with values as in URLs.
func parseHeaders(list string) (map[string]string, error) {
	headers := make(map[string]string)
	for i, pair := range strings.Split(list, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		decoded, err := url.PathUnescape(strings.TrimSpace(value))
		if !ok || err != nil { // any part may be a secret
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_HEADERS: pair %d: want key=value pairs with a comma between them, and values as in URLs", i+1)
		}
		headers[http.CanonicalHeaderKey(strings.TrimSpace(key))] = decoded
	}
	return headers, nil
}

// checkHeader refuses what no request can have: sent again and again, it would fail each time. The value may be a secret.
func checkHeader(key, value string) error {
	token := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	}
	if key == "" || strings.ContainsFunc(key, func(r rune) bool { return !token(r) }) {
		return fmt.Errorf("a header has the name %q: want letters, digits and hyphens", key)
	}
	if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return fmt.Errorf("the value of header %q has control characters, such as the end of a line", key)
	}
	return nil
}

func (c *Config) timeout(s Signal) (time.Duration, error) {
	const usual = 10 * time.Second
	text := c.env(s, "TIMEOUT")
	if c.Timeout > 0 || text == "" {
		return cmp.Or(c.Timeout, usual), nil
	}
	ms, err := strconv.ParseUint(text, 10, 31)
	if err != nil || ms == 0 {
		return 0, fmt.Errorf("OTEL_EXPORTER_OTLP_TIMEOUT=%s: want a number of milliseconds", text)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// tlsConfig reads the certificates that the environment names.
func (c *Config) tlsConfig(s Signal) (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if name := c.env(s, "CERTIFICATE"); name != "" {
		pem, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE: %s has no certificate in PEM format", name)
		}
	}
	cert, key := c.env(s, "CLIENT_CERTIFICATE"), c.env(s, "CLIENT_KEY")
	if cert == "" && key == "" {
		return out, nil
	}
	own, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and _CLIENT_KEY: %w", err)
	}
	out.Certificates = []tls.Certificate{own}
	return out, nil
}

// ResourceAttributes returns the resource attributes of OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME. The error says what is
// wrong with them.
func ResourceAttributes(getenv func(string) string) (map[string]any, error) {
	attributes := make(map[string]any)
	for pair := range strings.SplitSeq(getenv("OTEL_RESOURCE_ATTRIBUTES"), ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		decoded, err := url.PathUnescape(strings.TrimSpace(value))
		if key = strings.TrimSpace(key); !ok || err != nil || key == "" {
			return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %q: want key=value pairs with a comma between them", pair)
		}
		attributes[key] = decoded
	}
	if name := getenv("OTEL_SERVICE_NAME"); name != "" {
		attributes["service.name"] = name
	}
	return attributes, nil
}

// Interval returns the time between two pushes of metrics, of OTEL_METRIC_EXPORT_INTERVAL or 15 s. The error says that it is no
// number of milliseconds.
func Interval(getenv func(string) string) (time.Duration, error) {
	const usual = 15 * time.Second
	text := strings.TrimSpace(getenv("OTEL_METRIC_EXPORT_INTERVAL"))
	if text == "" {
		return usual, nil
	}
	ms, err := strconv.ParseUint(text, 10, 31)
	if err != nil || ms == 0 {
		return 0, fmt.Errorf("OTEL_METRIC_EXPORT_INTERVAL=%s: want a number of milliseconds", text)
	}
	return time.Duration(ms) * time.Millisecond, nil
}
