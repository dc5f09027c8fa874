package collector

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/fileexporter"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/debugexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

// isCollector is the variable that makes this binary a Collector.
const isCollector = "GPUMEMTRACK_TEST_COLLECTOR"

func TestMain(m *testing.M) {
	if os.Getenv(isCollector) == "" {
		os.Exit(m.Run())
	}
	cmd := otelcol.NewCommand(otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "otelcol", Version: "0"},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()}, DefaultScheme: "file",
		}},
	})
	if err := cmd.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func factories() (otelcol.Factories, error) {
	f := otelcol.Factories{Telemetry: otelconftelemetry.NewFactory()}
	var err error
	if f.Receivers, err = otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory()); err != nil {
		return f, err
	}
	f.Exporters, err = otelcol.MakeFactoryMap[exporter.Factory](debugexporter.NewFactory(), fileexporter.NewFactory())
	return f, err
}

// running is a Collector that runs docs/fleet/otelcol.yaml, at addresses of its own.
type running struct {
	http, grpc string // addresses
	folder     string
	runs       int
	cmd        *exec.Cmd
	log        bytes.Buffer
}

// address returns one that is free at the moment.
func address(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func newCollector(t *testing.T) *running {
	t.Helper()
	c := &running{http: address(t), grpc: address(t), folder: t.TempDir()}
	c.start(t)
	t.Cleanup(func() { c.kill(t) })
	return c
}

// start starts it, with new files. It returns once the Collector listens.
func (c *running) start(t *testing.T) {
	t.Helper()
	config, err := os.ReadFile("../../../docs/fleet/otelcol.yaml")
	require.NoError(t, err)
	c.runs++
	text := string(config)
	for from, to := range map[string]string{
		"0.0.0.0:4318": c.http, "0.0.0.0:4317": c.grpc,
		"/var/lib/otelcol/": fmt.Sprintf("%s/%d-", c.folder, c.runs),
	} {
		require.Contains(t, text, from)
		text = strings.ReplaceAll(text, from, to)
	}
	// Its own metrics would be served at a port that is always the same.
	text = strings.Replace(text, "service:\n", "service:\n  telemetry: {metrics: {level: none}}\n", 1)
	file := filepath.Join(c.folder, "otelcol.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))

	c.cmd = exec.Command(os.Args[0], "--config="+file, "--feature-gates=+service.profilesSupport")
	c.cmd.Env = append(os.Environ(), isCollector+"=1")
	c.cmd.Stdout, c.cmd.Stderr = &c.log, &c.log
	require.NoError(t, c.cmd.Start())
	for range 3000 { // five minutes: a busy machine is no failure
		if conn, err := net.Dial("tcp", c.http); err == nil {
			conn.Close()
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	c.kill(t)
	t.Fatalf("the Collector does not listen:\n%s", c.log.String())
}

// kill ends it without a chance to write anything.
func (c *running) kill(t *testing.T) {
	t.Helper()
	if c.cmd == nil {
		return
	}
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	c.cmd = nil
}

// received returns the requests in the files of all runs of a signal, in order. The last of a run may be torn.
func (c *running) received(t *testing.T, signal string) (all [][]byte) {
	t.Helper()
	for run := range c.runs {
		text, err := os.ReadFile(fmt.Sprintf("%s/%d-%s.binpb", c.folder, run+1, signal))
		require.NoError(t, err)
		for len(text) >= 4 {
			n := int(text[0])<<24 | int(text[1])<<16 | int(text[2])<<8 | int(text[3])
			if text = text[4:]; n > len(text) {
				break
			}
			all = append(all, text[:n])
			text = text[n:]
		}
	}
	return all
}

// proxy is an HTTP server before the Collector that keeps what was sent, by path.
type proxy struct {
	address string
	sent    chan request
}

type request struct {
	path    string
	payload []byte
	taken   bool
}

// newProxy passes requests on. Where the Collector does not answer, neither does it.
func newProxy(t *testing.T, to string, unpack func(io.Reader) ([]byte, error)) *proxy {
	t.Helper()
	p := &proxy{sent: make(chan request, 1<<16)}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		payload, err := unpack(bytes.NewReader(body))
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		onward, err := http.NewRequestWithContext(context.WithoutCancel(r.Context()), r.Method, "http://"+to+r.URL.Path, bytes.NewReader(body))
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		onward.Header = r.Header.Clone()
		response, err := http.DefaultTransport.RoundTrip(onward)
		p.sent <- request{r.URL.Path, payload, err == nil && response.StatusCode == http.StatusOK}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer response.Body.Close()
		w.WriteHeader(response.StatusCode)
		_, _ = io.Copy(w, response.Body)
	})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p.address = l.Addr().String()
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	return p
}
