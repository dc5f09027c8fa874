package live_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/tracker/live"
)

func TestPromtoolAcceptsTheMetrics(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool, of Debian's package prometheus, is not in PATH")
	}
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = bytes.NewReader(get(t, live.Handler(trained(t)), "metrics?top=3").Body.Bytes())
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err, "%s", out)
	assert.Empty(t, string(out))
}

func TestPrometheusScrapesIt(t *testing.T) {
	prometheus, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("prometheus, of Debian's package of that name, is not in PATH")
	}
	target := httptest.NewServer(live.Handler(trained(t)))
	defer target.Close()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
global: {scrape_interval: 200ms}
scrape_configs:
  - job_name: gpu
    metrics_path: /metrics
    static_configs: [{targets: [%q]}]
`, target.Listener.Addr()), 0o644))
	addr := freeAddr(t)
	var log bytes.Buffer
	cmd := exec.Command(prometheus, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr)
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var got string
	require.Eventually(t, func() bool {
		got = query(addr, `gpumem_live_buffers{kind="Parameter"}`)
		return got != ""
	}, time.Minute, 100*time.Millisecond)
	assert.Equal(t, "2", got)
	assert.Equal(t, "1", query(addr, `sum(gpumem_device_memory_bytes) == bool 4 * 1024^3`))
}

func freeAddr(t *testing.T) string {
	l, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// query asks a Prometheus server; the answer is "" while there is none.
func query(addr, expression string) string {
	answer, err := http.Get("http://" + addr + "/api/v1/query?query=" + url.QueryEscape(expression))
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return ""
	}
	var result struct {
		Data struct{ Result []struct{ Value [2]any } }
	}
	if json.Unmarshal(text, &result) != nil || len(result.Data.Result) != 1 {
		return ""
	}
	return fmt.Sprint(result.Data.Result[0].Value[1])
}
