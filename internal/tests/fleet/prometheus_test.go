package fleet_test

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
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
)

// named is a device with a UUID.
type named struct{ cachetest.Device }

func (named) UUID() string { return "GPU-1" }

// dcgm is what NVIDIA's dcgm-exporter says of that device and of another: the one as of
// version 4.9, the other before it.
const dcgm = `DCGM_FI_DEV_FB_USED_BYTES{gpu="0",UUID="GPU-1",hostname="node-1"} 104857600
DCGM_FI_DEV_GPU_UTIL_RATIO{gpu="0",UUID="GPU-1",hostname="node-1"} 0.5
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-2",Hostname="node-2"} 100
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-2",Hostname="node-2"} 50
`

// program is one that forgets buffers, as Suspects sees it.
func program(t *testing.T) *tracker.MemTracker {
	t.Helper()
	device, err := cachetest.NewDevice(sim.Config{Memory: alloc.GiB})
	require.NoError(t, err)
	now := time.Now()
	tr, err := tracker.New(tracker.Config{Device: named{device}, Report: io.Discard, Clock: func() time.Time { return now }})
	require.NoError(t, err)
	t.Cleanup(func() { tr.Close() })
	for i := range 3000 {
		b, err := tr.AllocBytes(alloc.KiB, tracker.Activation)
		require.NoError(t, err)
		now = now.Add(10 * time.Millisecond)
		if i%100 != 0 {
			require.NoError(t, b.Free())
		}
	}
	return tr
}

type scrapeConfig struct {
	JobName       string              `yaml:"job_name"`
	MetricsPath   string              `yaml:"metrics_path"`
	Params        map[string][]string `yaml:"params"`
	StaticConfigs []struct {
		Targets []string
	} `yaml:"static_configs"`
}

func scrapeConfigs(t *testing.T) []scrapeConfig {
	t.Helper()
	var c struct {
		Global        map[string]string
		RuleFiles     []string       `yaml:"rule_files"`
		ScrapeConfigs []scrapeConfig `yaml:"scrape_configs"`
	}
	readYAML(t, "prometheus.yml", &c)
	assert.Equal(t, []string{"rules.yml"}, c.RuleFiles)
	require.Len(t, c.ScrapeConfigs, 2)
	return c.ScrapeConfigs
}

// scrapePath is what prometheus.yml asks a program for.
func scrapePath(t *testing.T) string {
	t.Helper()
	c := scrapeConfigs(t)[0]
	return c.MetricsPath + "?" + url.Values(c.Params).Encode()
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool, of Debian's package prometheus, is not in PATH")
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = folder
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err, "%s", out)
	assert.NotContains(t, string(out), "FAILED")
}

func TestPromtoolChecksTheRules(t *testing.T)  { promtool(t, "check", "rules", "rules.yml") }
func TestPromtoolTestsTheRules(t *testing.T)   { promtool(t, "test", "rules", "rules_test.yml") }
func TestPromtoolChecksTheConfig(t *testing.T) { promtool(t, "check", "config", "prometheus.yml") }

// TestEveryAlertIsTested finds each alert in the tests of the rules, once as it fires.
func TestEveryAlertIsTested(t *testing.T) {
	var r rules
	readYAML(t, "rules.yml", &r)
	var tests struct {
		RuleFiles          []string `yaml:"rule_files"`
		EvaluationInterval string   `yaml:"evaluation_interval"`
		Tests              []struct {
			Name, Interval string
			InputSeries    []any `yaml:"input_series"`
			PromqlExprTest []any `yaml:"promql_expr_test"`
			AlertRuleTests []struct {
				EvalTime  string `yaml:"eval_time"`
				Alertname string
				ExpAlerts []any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	readYAML(t, "rules_test.yml", &tests)
	fires := make(map[string]bool)
	for _, test := range tests.Tests {
		for _, a := range test.AlertRuleTests {
			fires[a.Alertname] = fires[a.Alertname] || len(a.ExpAlerts) > 0
		}
	}
	for _, g := range r.Groups {
		for _, rule := range g.Rules {
			if rule.Alert != "" {
				assert.True(t, fires[rule.Alert], rule.Alert)
			}
		}
	}
}

// TestEveryPanelShowsSomething has a Prometheus server scrape a program that needs more and
// more memory, with the rules and parameters of the files, and asks it what the panels ask.
func TestEveryPanelShowsSomething(t *testing.T) {
	prometheus, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("prometheus, of Debian's package of that name, is not in PATH")
	}
	tr := program(t)
	mux := http.NewServeMux()
	mux.Handle("/debug/gpumem/", live.Handler(tr))
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, dcgm) }) // another target's
	server := httptest.NewServer(mux)
	defer server.Close()
	address := startPrometheus(t, prometheus, server.Listener.Addr().String())

	ask := strings.NewReplacer("$__rate_interval", "10s", "$job", ".*", "$instance", ".*")
	queries := make(map[string]string)
	for _, p := range readDashboard(t).Panels {
		for _, q := range p.Targets {
			queries[p.Title+" "+q.RefID] = ask.Replace(q.Expr)
		}
	}
	for deadline := time.Now().Add(time.Minute); len(queries) > 0 && time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		_, err := tr.AllocBytes(alloc.MiB, tracker.Activation)
		require.NoError(t, err)
		for panel, expr := range queries {
			if series(address, expr) > 0 {
				delete(queries, panel)
			}
		}
	}
	assert.Empty(t, queries, "panels that stay empty")
}

// startPrometheus starts a server with prometheus.yml, except its intervals and addresses.
func startPrometheus(t *testing.T, path, target string) (address string) {
	dir := t.TempDir()
	for _, name := range []string{"prometheus.yml", "rules.yml"} {
		content := strings.NewReplacer("scrape_interval: 15s", "scrape_interval: 500ms\n  evaluation_interval: 500ms",
			"interval: 1m", "interval: 500ms", "127.0.0.1:6061", target, "127.0.0.1:6062", target).Replace(string(text(t, name)))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	listener, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	address = listener.Addr().String()
	require.NoError(t, listener.Close())
	var log bytes.Buffer
	cmd := exec.Command(path, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return address
}

// series returns how many series a query has; 0 while there is no answer.
func series(address, expr string) int {
	answer, err := http.Get(fmt.Sprintf("http://%s/api/v1/query?query=%s", address, url.QueryEscape(expr)))
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	var got struct {
		Data struct{ Result []any }
	}
	if json.NewDecoder(answer.Body).Decode(&got) != nil {
		return 0
	}
	return len(got.Data.Result)
}
